# SPDX-License-Identifier: Apache-2.0
#
# Whether there is a CUDA compiler, and how it is used. Sets QUIRE_HAS_CUDA, and enables the language where that is true.
# nvcc is looked for on the PATH and where NVIDIA's packages put it.

set(QUIRE_HAS_CUDA OFF)
if(QUIRE_CUDA AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(QUIRE_NVCC nvcc HINTS /usr/local/cuda/bin)
  mark_as_advanced(QUIRE_NVCC)
  if(QUIRE_NVCC)
    set(ENV{CUDACXX} ${QUIRE_NVCC}) # not CMAKE_CUDA_COMPILER: with that set, check_language() would not try it
  endif()
endif()

# One host compiler for everything that is linked together, unless somebody asks for another.
if(QUIRE_CUDA AND NOT CMAKE_CUDA_HOST_COMPILER AND NOT DEFINED ENV{CUDAHOSTCXX} AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()

if(QUIRE_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    check_language(CUDA)
  endif()
  if(CMAKE_CUDA_COMPILER)
    set(QUIRE_HAS_CUDA ON)
  else()
    message(STATUS "quire::cuda is left out: there is no nvcc that works, on the PATH or in /usr/local/cuda/bin")
  endif()
elseif(QUIRE_CUDA)
  set(QUIRE_HAS_CUDA ON)
endif()

if(QUIRE_HAS_CUDA)
  # Machine code for A100 and H100, and what later processors can compile for themselves.
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
  endif()
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13)
    set(why "nvcc is ${CMAKE_CUDA_COMPILER_VERSION}, and quire::cuda needs CUDA 13")
    if(NOT QUIRE_CUDA STREQUAL "AUTO")
      message(FATAL_ERROR "${why}")
    endif()
    message(STATUS "quire::cuda is left out: ${why}")
    set(QUIRE_HAS_CUDA OFF)
  else()
    find_package(CUDAToolkit REQUIRED)
  endif()
endif()

# As quire_target_defaults(), for a target whose sources are all CUDA.
function(quire_cuda_target_defaults target)
  set_target_properties(${target} PROPERTIES
    CUDA_RUNTIME_LIBRARY Static CUDA_SEPARABLE_COMPILATION OFF UNITY_BUILD OFF
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    -std=c++20 # CMake 3.25 has no such feature for nvcc
    # constexpr functions of the standard library and of the host's kernels are the device's as well.
    --expt-relaxed-constexpr
    # Results are the host's, bit for bit: a product and a sum are rounded one after the other.
    --fmad=false
    # Not -Wpedantic, -Wconversion and the like: what nvcc hands to the host compiler is not only what is written here.
    -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers
    $<$<BOOL:${QUIRE_WARNINGS_AS_ERRORS}>:-Werror=all-warnings>
    $<$<BOOL:${QUIRE_WARNINGS_AS_ERRORS}>:-Xcompiler=-Werror>)
endfunction()
