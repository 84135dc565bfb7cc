# GPU machine code: compiled once per target, embedded in libnf12.so, found there by
# csrc/runtime/code_objects.hpp. The library `nf12_gpu` is that and the code that runs it; it sees no
# torch and no vendor's header.
#
# Each unit becomes <build>/gpu/<target>/<unit>.co (or .fatbin); `cmake --build <build> --target
# gpu` makes these alone. Equal sources and compilers give equal bytes, wherever the tree lies.
include(cmake/gpu_compilers.cmake)

# unit: kernels that are one module                            families that ship it
set(nf12_units
    gemm_fused   csrc/gemm/fused/instances/fused.cpp     gfx12
    gemm_matrix  csrc/gemm/matrix/instances/matrix.cpp   gfx12,sm
    gemm_stream  csrc/gemm/stream/instances/stream.cpp   sm
    gemm_cluster csrc/gemm/cluster/instances/cluster.cpp sm
    gemm_warpgroup csrc/gemm/warpgroup/instances/warpgroup.cpp sm
    gemm_wide    csrc/gemm/wide/instances/wide.cpp       sm
    gemm_once    csrc/gemm/wide/instances/once.cpp       sm
    gemm_combine csrc/gemm/instances/combine.cpp         gfx12,sm
    unpack       csrc/unpack/instances/unpack.cpp        gfx12
    unpack_tile  csrc/unpack/instances/unpack_tile.cpp   sm
    gather       csrc/gather/instances/gather.cpp        gfx12,sm
    pack         csrc/pack/instances/pack.cpp            gfx12,sm
    check        csrc/pack/instances/check.cpp           gfx12,sm)

# NF12_GPU_TARGETS resolved to target names. What `auto` has to leave out it says; what was asked
# for by name must be built.
function(nf12_resolve_targets out)
  string(REPLACE "," ";" asked "${NF12_GPU_TARGETS}")
  nf12_all_targets(known)
  set(targets ${asked})
  if(asked STREQUAL none)
    set(targets "")
  elseif(asked STREQUAL all)
    set(targets ${known})
  elseif(asked STREQUAL auto)
    nf12_targets_of_this_machine(targets)
  endif()
  list(REMOVE_DUPLICATES targets)
  set(kept "")
  foreach(target IN LISTS targets)
    if(NOT target IN_LIST known)
      string(REPLACE ";" ", " names "${known}")
      message(FATAL_ERROR "nf12: NF12_GPU_TARGETS has '${target}', expected auto, all, none or a "
                          "list of ${names}")
    endif()
    nf12_why_not(${target} why)
    if(NOT why)
      list(APPEND kept ${target})
    elseif(asked STREQUAL auto)
      message(WARNING "nf12: this machine has a GPU for target ${target}, its kernels are left out: "
                      "${why}")
    else()
      message(FATAL_ERROR "nf12: target ${target} of NF12_GPU_TARGETS cannot be built: ${why}")
    endif()
  endforeach()
  set(${out} "${kept}" PARENT_SCOPE)
endfunction()

# A rule that compiles `source` for `target`; the file goes to `out`.
function(nf12_compile_unit target unit source out)
  set(include -I${PROJECT_SOURCE_DIR})
  if(target STREQUAL sm)
    set(object gpu/sm/${unit}.fatbin)
    nf12_names_of(nvidia names)
    set(codes "")
    foreach(name IN LISTS names)
      # sm_90a is code for that GPU alone; compute_90 stays PTX, for later ones.
      string(REGEX REPLACE "^(sm|compute)_" "compute_" virtual ${name})
      list(APPEND codes -gencode arch=${virtual},code=${name})
    endforeach()
    set(command ${NF12_NVCC} -x cu -std=c++20 -O3 -fatbin --expt-relaxed-constexpr ${codes} ${include}
                -ccbin ${CMAKE_CXX_COMPILER} -MD -MF ${object}.d -MT ${object})
  else()
    set(object gpu/${target}/${unit}.co)
    set(command ${NF12_CLANG} ${nf12_clang_flags} --offload-arch=${target} -O3 -std=c++20 -Wall
                -fuse-cuid=none  # or the same source differs by folder
                ${include}
                # -MD goes unheard where code is compiled for the device alone.
                -Xclang -dependency-file -Xclang ${object}.d -Xclang -MT -Xclang ${object})
  endif()
  add_custom_command(
    OUTPUT ${PROJECT_BINARY_DIR}/${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/gpu/${target}
    COMMAND ${command} -o ${object} ${PROJECT_SOURCE_DIR}/${source}
    DEPENDS ${source} ${nf12_targets_json}
    DEPFILE ${object}.d
    WORKING_DIRECTORY ${PROJECT_BINARY_DIR}
    COMMENT "GPU code for ${target}: ${unit}"
    VERBATIM)
  set(${out} ${PROJECT_BINARY_DIR}/${object} PARENT_SCOPE)
endfunction()

# code_objects(): the files as read-only data of one C++ file. By the assembler, since an array of
# numbers would take the compiler minutes; on page boundaries, as the drivers read them.
function(nf12_embed objects)
  set(data "")
  set(declarations "")
  set(entries "")
  set(i 0)
  foreach(object IN LISTS objects)
    get_filename_component(unit ${object} NAME_WE)
    get_filename_component(folder ${object} DIRECTORY)
    get_filename_component(target ${folder} NAME)
    string(APPEND data "
  .balign 4096
  .globl nf12_code_object_${i}, nf12_code_object_${i}_end
  .hidden nf12_code_object_${i}, nf12_code_object_${i}_end
nf12_code_object_${i}:
  .incbin \"${object}\"
nf12_code_object_${i}_end:")
    string(APPEND declarations "
extern \"C\" __attribute__((visibility(\"hidden\"))) const std::byte nf12_code_object_${i}[];
extern \"C\" __attribute__((visibility(\"hidden\"))) const std::byte nf12_code_object_${i}_end[];")
    string(APPEND entries "
      {\"${target}\", \"${unit}\", {nf12_code_object_${i}, nf12_code_object_${i}_end}},")
    math(EXPR i "${i} + 1")
  endforeach()
  set(body "return {};")
  if(objects)
    set(body "static const CodeObject all[] = {${entries}\n  };\n  return all;")
  endif()
  set(generated ${PROJECT_BINARY_DIR}/generated/code_objects.cpp)
  file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT "// Generated by cmake/gpu.cmake.
#include \"csrc/runtime/code_objects.hpp\"

asm(R\"(
  .pushsection .rodata.nf12_code_objects, \"a\"@data@
  .popsection
)\");
@declarations@

namespace nf12::runtime {

std::span<const CodeObject> code_objects() {
  @body@
}

}  // namespace nf12::runtime
")
  set_source_files_properties(${generated} PROPERTIES OBJECT_DEPENDS "${objects}")
endfunction()

nf12_find_clang()
nf12_find_nvcc()
nf12_resolve_targets(nf12_targets)

set(code_objects "")
foreach(target IN LISTS nf12_targets)
  set(family gfx12)
  if(target STREQUAL sm)
    set(family sm)
  endif()
  set(rest ${nf12_units})
  while(rest)
    list(POP_FRONT rest unit source families)
    if(families MATCHES ${family})
      nf12_compile_unit(${target} ${unit} ${source} object)
      list(APPEND code_objects ${object})
    endif()
  endwhile()
endforeach()
add_custom_target(gpu DEPENDS ${code_objects})
nf12_embed("${code_objects}")

file(GLOB gpu_sources CONFIGURE_DEPENDS csrc/runtime/*.cpp csrc/gpu/*.cpp)
add_library(nf12_gpu OBJECT EXCLUDE_FROM_ALL ${gpu_sources} ${PROJECT_BINARY_DIR}/generated/code_objects.cpp)

foreach(target IN LISTS nf12_targets)
  if(target STREQUAL sm)
    message(STATUS "GPU kernels for NVIDIA (sm): ${NF12_NVCC_VERSION}")
  else()
    message(STATUS "GPU kernels for ${target}: ${NF12_CLANG_VERSION}")
  endif()
endforeach()
if(NOT nf12_targets)
  message(STATUS "GPU kernels: none (NF12_GPU_TARGETS is ${NF12_GPU_TARGETS})")
endif()
