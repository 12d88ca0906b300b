# SPDX-License-Identifier: Apache-2.0
#
# What `cmake --install` puts in a prefix: the library, include/quire, the tool, and the package that
# find_package(quire) reads. A project that adds quire as a subdirectory installs nothing of it.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(quire_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/quire)

install(TARGETS quire EXPORT quire-targets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/quire DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN metrics.h EXCLUDE PATTERN device_kernels.h EXCLUDE)
install(EXPORT quire-targets NAMESPACE quire:: DESTINATION ${quire_package_dir})
if(TARGET quire_metrics)
  # With targets of its own: only who asks for the component needs prometheus-cpp.
  install(TARGETS quire_metrics EXPORT quire-metrics-targets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES include/quire/metrics.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quire)
  install(EXPORT quire-metrics-targets NAMESPACE quire:: DESTINATION ${quire_package_dir})
endif()
if(TARGET quire_cuda)
  # Likewise: only who asks for the component needs the CUDA toolkit.
  install(TARGETS quire_cuda EXPORT quire-cuda-targets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES include/quire/device_kernels.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quire)
  install(EXPORT quire-cuda-targets NAMESPACE quire:: DESTINATION ${quire_package_dir})
endif()
if(TARGET quire_tool)
  install(TARGETS quire_tool)
endif()

configure_package_config_file(cmake/quire-config.cmake.in quire-config.cmake
  INSTALL_DESTINATION ${quire_package_dir})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(quire-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/quire-config.cmake ${PROJECT_BINARY_DIR}/quire-config-version.cmake
  cmake/FindQuireUring.cmake cmake/FindQuireZstd.cmake
  DESTINATION ${quire_package_dir})
