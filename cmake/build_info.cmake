# Writes what `nf12 info` says of the library. The hash is SHA-256 over the lines
# "<sha256 of the file>  <path>\n" of all C++ files of csrc, sorted by path.
file(GLOB_RECURSE sources RELATIVE ${ROOT} ${ROOT}/csrc/*.hpp ${ROOT}/csrc/*.cpp ${ROOT}/csrc/*.h)
list(SORT sources)
set(lines "")
foreach(source IN LISTS sources)
  file(SHA256 ${ROOT}/${source} hash)
  string(APPEND lines "${hash}  ${source}\n")
endforeach()
string(SHA256 source_hash "${lines}")
file(WRITE ${OUTPUT} "#pragma once
#define NF12_VERSION \"${VERSION}\"
#define NF12_COMPILER \"${COMPILER}\"
#define NF12_SOURCE_HASH \"${source_hash}\"
")
