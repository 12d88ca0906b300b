// SPDX-License-Identifier: Apache-2.0
//
// Every conversion of standard types that some part of the module uses. All parts include all of them: a part that has
// not seen one compiles all the same, takes the type for a class of its own, and the linker may keep that.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
