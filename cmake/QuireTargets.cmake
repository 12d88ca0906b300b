# SPDX-License-Identifier: Apache-2.0
#
# How every target of this project is compiled, and the functions that declare tests and benchmarks.

# Sanitizers must cover everything that is linked together, so they are set for the directory, not for a target.
if(QUIRE_SANITIZE)
  add_compile_options(-fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QUIRE_SANITIZE})
  if(QUIRE_SANITIZE MATCHES "undefined")
    # The address sanitizer sees what these would, at the access: they cost a fifth of the time to compile.
    add_compile_options(-fno-sanitize=null,object-size,vptr)
  endif()
endif()

# The thread sanitizer of GCC 12 cannot place its shadow memory where the kernel randomises addresses widely, so its
# tests run without randomisation, where that is allowed.
if(QUIRE_SANITIZE MATCHES "thread")
  execute_process(COMMAND setarch -R true RESULT_VARIABLE setarch_result OUTPUT_QUIET ERROR_QUIET)
  if(setarch_result EQUAL 0)
    set(QUIRE_TEST_LAUNCHER setarch -R)
  endif()
endif()

# Language level and warnings of quire's own code. Nothing of this reaches the code of a user of the library.
function(quire_target_defaults target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  # -Wsign-conversion is left out: it asks for a cast at every use of a container's index and finds little else.
  # -Wmissing-field-initializers too: members with defaults are left out of designated initialisers on purpose.
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers
    -Wnon-virtual-dtor -Woverloaded-virtual
    $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
    # Where sources are compiled together, it would take them for headers.
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:$<TARGET_PROPERTY:${target},UNITY_BUILD>>>:-Wno-subobject-linkage>
    $<$<BOOL:${QUIRE_WARNINGS_AS_ERRORS}>:-Werror>)
endfunction()

# What only the project itself uses is compiled together where the tests are. Not the library: it is to be the one that
# its users build, and each of its sources has all the headers it needs.
function(quire_compile_together target)
  if(CMAKE_UNITY_BUILD OR QUIRE_UNITY_TESTS)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10)
  endif()
endfunction()

# How every source of a test is compiled.
function(quire_test_target_defaults target)
  quire_target_defaults(${target})
  target_link_libraries(${target} PRIVATE quire_testing quire_internal GTest::gtest_main)
  # For what tests share among themselves: "tests/cache/cache_fixture.h".
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
endfunction()

# What is tested is optimised, most tests are not: they are the larger part of what there is to compile, and half of that
# time would go into optimising code that runs once.
set(QUIRE_COLD_TEST_OPTIONS -O0)
if(QUIRE_SANITIZE MATCHES "undefined")
  # Tests handle no raw memory of their own; what they test is looked at for alignment too.
  list(APPEND QUIRE_COLD_TEST_OPTIONS -fno-sanitize=alignment)
endif()

# GoogleTest's header is half of what a compiler reads for a test, so GCC reads it once. It is the only one, so that an
# include that a test forgets is noticed as before. Not where ccache is in use, which saves all the work and could not
# with a precompiled header, and not for Clang, where clang-tidy is to see each source as it is.
if(QUIRE_BUILD_TESTS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled_gtest.cc CONTENT "")
  # What is precompiled with one optimisation is of no use with another, so there is one for each.
  foreach(kind cold hot)
    add_library(quire_precompiled_gtest_${kind} OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/precompiled_gtest.cc)
    quire_test_target_defaults(quire_precompiled_gtest_${kind})
    target_precompile_headers(quire_precompiled_gtest_${kind} PRIVATE <gtest/gtest.h>)
  endforeach()
  target_compile_options(quire_precompiled_gtest_cold PRIVATE ${QUIRE_COLD_TEST_OPTIONS})
endif()

# A target with sources of tests, of the kind cold or hot.
function(quire_compile_as_test target kind)
  quire_compile_together(${target})
  quire_test_target_defaults(${target})
  if(kind STREQUAL "cold")
    target_compile_options(${target} PRIVATE ${QUIRE_COLD_TEST_OPTIONS})
  endif()
  if(TARGET quire_precompiled_gtest_${kind})
    target_precompile_headers(${target} REUSE_FROM quire_precompiled_gtest_${kind})
    # From a precompiled header GCC 12 no longer knows that std::string is the system's, and tells of its inner workings.
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow)
  endif()
endfunction()

# quire_add_test(<name> SOURCES <file>... [LIBS <target>...] [DEFINITIONS <name>=<value>...] [SECONDS <number>]
#                [THREADS] [HOT] [ALONE])
#
# One GoogleTest binary and one ctest entry of the same name. THREADS marks a test that starts threads: only those are
# built and run under the thread sanitizer, which has nothing to say about the others. HOT marks a test that is
# optimised as the library is: it would spend seconds more in its own code than that takes, or is about what the optimised
# code does. SECONDS says about how long a test takes, of those that take long: ctest begins with them, so that no core
# waits for another in the end.
#
# In a unity build, and with QUIRE_UNITY_TESTS, which leaves everything else as it is, the tests of a folder are one
# binary and one ctest entry, named after the folder: src_prefix_tests, tests_cache_tests. Only sources of one binary
# can be compiled together, and about half of the code in the objects of all tests was copies of inline functions and
# templates that others of them had too. <name> is then a link to that binary, so that the line with which a failure
# can be repeated holds. Apart from these are tests that are HOT, and those marked ALONE because they are linked in a
# way of their own, or use a name that a neighbour has for something else. Their own sources are compiled together
# too.
function(quire_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "THREADS;HOT;ALONE" "SECONDS" "SOURCES;LIBS;DEFINITIONS")
  if(NOT QUIRE_BUILD_TESTS OR (QUIRE_SANITIZE MATCHES "thread" AND NOT arg_THREADS))
    return()
  endif()
  set(binary ${name})
  if((CMAKE_UNITY_BUILD OR QUIRE_UNITY_TESTS) AND NOT arg_HOT AND NOT arg_ALONE)
    list(GET arg_SOURCES 0 folder)
    cmake_path(ABSOLUTE_PATH folder BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    cmake_path(GET folder PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    string(REPLACE / _ binary ${folder}_tests)
  endif()
  if(NOT TARGET ${binary})
    add_executable(${binary})
    if(arg_HOT)
      quire_compile_as_test(${binary} hot)
    else()
      quire_compile_as_test(${binary} cold)
    endif()
    add_test(NAME ${binary} COMMAND ${QUIRE_TEST_LAUNCHER} $<TARGET_FILE:${binary}>)
    set_tests_properties(${binary} PROPERTIES TIMEOUT 600 COST 0)
  endif()
  target_sources(${binary} PRIVATE ${arg_SOURCES})
  target_link_libraries(${binary} PRIVATE ${arg_LIBS})
  target_compile_definitions(${binary} PRIVATE ${arg_DEFINITIONS})
  if(arg_SECONDS)
    get_test_property(${binary} COST cost)
    math(EXPR cost "${cost} + ${arg_SECONDS}")
    set_tests_properties(${binary} PROPERTIES COST ${cost})
  endif()
  if(arg_THREADS)
    set_tests_properties(${binary} PROPERTIES LABELS threads)
  endif()
  if(NOT binary STREQUAL name)
    add_custom_command(TARGET ${binary} POST_BUILD
      COMMAND ${CMAKE_COMMAND} -E create_symlink ${binary} $<TARGET_FILE_DIR:${binary}>/${name})
  endif()
endfunction()

# quire_add_benchmark(<name> SOURCES <file>... [LIBS <target>...])
#
# One Google Benchmark binary, named bench_<name> beside the others in bin/.
function(quire_add_benchmark name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_executable(bench_${name} ${arg_SOURCES})
  quire_target_defaults(bench_${name})
  target_link_libraries(bench_${name} PRIVATE
    quire_testing quire_internal benchmark::benchmark_main ${arg_LIBS})
  # For what benchmarks share among themselves: "bench/overlap.h".
  target_include_directories(bench_${name} PRIVATE ${PROJECT_SOURCE_DIR})
endfunction()

# quire_add_gpu_binary(<name> SOURCES <file>... [LIBS <target>...])
#
# A program that runs on a machine with a GPU and little else: of the libraries, only those of libc are shared, and the
# driver's, which the CUDA runtime looks for by itself. Everything else is linked in, so quire comes as its files and not
# as a target, whose dependencies are shared libraries. Sources may be C++ and CUDA. It can be built without a GPU.
function(quire_add_gpu_binary name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  foreach(library ssl crypto uring zstd)
    find_library(QUIRE_STATIC_${library} NAMES lib${library}.a ${library} REQUIRED)
    mark_as_advanced(QUIRE_STATIC_${library})
    list(APPEND static_libraries ${QUIRE_STATIC_${library}})
  endforeach()
  set(cuda_sources ${arg_SOURCES})
  list(FILTER cuda_sources INCLUDE REGEX "\\.cu$")
  list(FILTER arg_SOURCES EXCLUDE REGEX "\\.cu$")
  add_executable(${name} ${arg_SOURCES})
  quire_target_defaults(${name})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  if(cuda_sources)
    # With a target of their own, since a target's options are for one compiler.
    add_library(${name}_cuda OBJECT ${cuda_sources})
    quire_cuda_target_defaults(${name}_cuda)
    # Its kernels are few: any processor compiles them for itself, instead of this machine for each of them.
    set_target_properties(${name}_cuda PROPERTIES CUDA_ARCHITECTURES 80-virtual)
    list(APPEND parts ${name}_cuda)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:${name}_cuda>)
  endif()
  foreach(part ${name} ${parts})
    target_include_directories(${part} PRIVATE
      ${PROJECT_SOURCE_DIR} $<TARGET_PROPERTY:quire_internal,INTERFACE_INCLUDE_DIRECTORIES>)
    target_compile_definitions(${part} PRIVATE $<TARGET_PROPERTY:quire_internal,INTERFACE_COMPILE_DEFINITIONS>)
  endforeach()
  add_dependencies(${name} quire_cuda quire)
  target_link_libraries(${name} PRIVATE
    ${arg_LIBS} $<TARGET_FILE:quire_cuda> $<TARGET_FILE:quire> ${static_libraries} CUDA::cudart_static)
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS $<TARGET_FILE:quire_cuda> $<TARGET_FILE:quire>)
  target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
endfunction()
