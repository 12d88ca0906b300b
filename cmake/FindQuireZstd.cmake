# SPDX-License-Identifier: Apache-2.0
#
# quire::zstd, the compression library (libzstd-dev). A module of quire's own, installed with it: zstd brings a CMake
# package only where it was built with CMake, and what is in it has changed its names.
include(FindPackageHandleStandardArgs)

find_library(QUIRE_ZSTD_LIBRARY zstd)
find_path(QUIRE_ZSTD_INCLUDE_DIR zstd.h)
mark_as_advanced(QUIRE_ZSTD_LIBRARY QUIRE_ZSTD_INCLUDE_DIR)
find_package_handle_standard_args(QuireZstd
  REQUIRED_VARS QUIRE_ZSTD_LIBRARY QUIRE_ZSTD_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "on Debian it is in libzstd-dev")

if(QuireZstd_FOUND AND NOT TARGET quire::zstd)
  add_library(quire::zstd UNKNOWN IMPORTED)
  set_target_properties(quire::zstd PROPERTIES
    IMPORTED_LOCATION ${QUIRE_ZSTD_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${QUIRE_ZSTD_INCLUDE_DIR})
endif()
