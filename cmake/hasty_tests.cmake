# C++ tests that are compiled often and run once. The standard library's headers, which take longer
# to compile than most of what includes them, are compiled once for all libraries and once for all
# programs; the programs, with the kernels that they include, are not optimized. What ships is never
# compiled so: there a file has to include what it uses.
set(targets nf12_test_support nf12_cpu nf12_gpu)
foreach(folder tests/cpp tests/host_model tests/standin)
  get_property(found DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  list(APPEND targets ${found})
endforeach()
foreach(target IN LISTS targets)
  get_target_property(kind ${target} TYPE)
  if(kind STREQUAL EXECUTABLE)
    target_compile_options(${target} PRIVATE -O0)
  else()
    set(kind LIBRARY)
  endif()
  if(DEFINED first_${kind})
    target_precompile_headers(${target} REUSE_FROM ${first_${kind}})
  else()
    target_precompile_headers(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/cpp/standard.hpp)
    set(first_${kind} ${target})
  endif()
endforeach()
