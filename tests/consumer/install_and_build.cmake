# SPDX-License-Identifier: Apache-2.0
#
# Installs quire from QUIRE_BUILD_DIR into a prefix under WORK_DIR, builds the project beside this file against it with
# CXX_COMPILER and the package's COMPONENTS, and runs the result, which prints the VERSION it found.

file(REMOVE_RECURSE ${WORK_DIR})
set(prefix ${WORK_DIR}/prefix)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${QUIRE_BUILD_DIR} --prefix ${prefix}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

# Nothing but include/quire is a user's to see.
file(GLOB installed RELATIVE ${prefix}/include ${prefix}/include/*)
if(NOT installed STREQUAL "quire")
  message(FATAL_ERROR "installed headers: ${installed}")
endif()

execute_process(COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK_DIR}/build -G Ninja
  -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_CXX_COMPILER=${CXX_COMPILER} -D QUIRE_WANTED_VERSION=${VERSION}
  -D QUIRE_WANTED_COMPONENTS=${COMPONENTS}
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK_DIR}/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK_DIR}/build/consumer OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output STREQUAL "quire ${VERSION}\n")
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()
foreach(component IN LISTS COMPONENTS)
  execute_process(COMMAND ${WORK_DIR}/build/${component}_consumer COMMAND_ERROR_IS_FATAL ANY)
endforeach()
