# SPDX-License-Identifier: Apache-2.0
#
# cmake -D SOURCE=<text file> -D TARGET=<file.cc> -D NAME=<kName> -P EmbedText.cmake
#
# Writes a source that defines quire::<kName>, a std::string_view with the text of a file. The text becomes raw string
# literals of some thousand bytes each, cut at line ends so that no character is cut. Together they may be longer than
# what the standard asks of compilers; those in use have no limit.
set(piece_bytes_max 12000)

file(READ "${SOURCE}" text)
if(text MATCHES "\\)quire\"")
  message(FATAL_ERROR "${SOURCE} contains the end of a raw string literal: )quire\"")
endif()

set(literals "")
string(LENGTH "${text}" left)
while(left GREATER 0)
  set(piece "${text}")
  if(left GREATER piece_bytes_max)
    string(SUBSTRING "${text}" 0 ${piece_bytes_max} piece)
    string(FIND "${piece}" "\n" last_line_end REVERSE)
    if(last_line_end EQUAL -1)
      message(FATAL_ERROR "${SOURCE} has a line of more than ${piece_bytes_max} bytes")
    endif()
    math(EXPR piece_bytes "${last_line_end} + 1")
    string(SUBSTRING "${text}" 0 ${piece_bytes} piece)
  endif()
  string(LENGTH "${piece}" piece_bytes)
  string(SUBSTRING "${text}" ${piece_bytes} -1 text)
  string(LENGTH "${text}" left)
  string(APPEND literals "\nR\"quire(${piece})quire\"")
endwhile()

cmake_path(GET SOURCE FILENAME source_name)
file(WRITE "${TARGET}" "// Made from ${source_name}; change that file instead.
#include <string_view>

#pragma GCC diagnostic ignored \"-Woverlength-strings\"

namespace quire {

extern const std::string_view ${NAME};
constinit const std::string_view ${NAME} = \"\"${literals};

}  // namespace quire
")
