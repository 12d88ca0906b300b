# SPDX-License-Identifier: Apache-2.0
#
# quire::uring, the library for io_uring (liburing-dev), which has no CMake package. Installed with quire.
include(FindPackageHandleStandardArgs)

find_library(QUIRE_URING_LIBRARY uring)
find_path(QUIRE_URING_INCLUDE_DIR liburing.h)
mark_as_advanced(QUIRE_URING_LIBRARY QUIRE_URING_INCLUDE_DIR)
find_package_handle_standard_args(QuireUring
  REQUIRED_VARS QUIRE_URING_LIBRARY QUIRE_URING_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "on Debian it is in liburing-dev")

if(QuireUring_FOUND AND NOT TARGET quire::uring)
  add_library(quire::uring UNKNOWN IMPORTED)
  set_target_properties(quire::uring PROPERTIES
    IMPORTED_LOCATION ${QUIRE_URING_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${QUIRE_URING_INCLUDE_DIR})
endif()
