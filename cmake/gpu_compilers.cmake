# Which GPU compilers and which GPUs this machine has.
#
#   cmake -P cmake/gpu_compilers.cmake       its last line lists the targets that can be built here

# clang before 20 leaves out waits that gfx12 needs: its code may compute anything on a card
# (scripts/gfx12_hazards.py shows where).
set(nf12_least_clang 20)
set(nf12_least_nvcc 12.3)  # the first with accesses of 16 bytes that are one

set(nf12_targets_json ${CMAKE_CURRENT_LIST_DIR}/../csrc/arch/targets.json)

# The names of one family in csrc/arch/targets.json.
function(nf12_names_of family out)
  file(READ ${nf12_targets_json} json)
  string(JSON count LENGTH "${json}" ${family})
  math(EXPR last "${count} - 1")
  set(names "")
  foreach(i RANGE ${last})
    string(JSON name GET "${json}" ${family} ${i})
    list(APPEND names ${name})
  endforeach()
  set(${out} "${names}" PARENT_SCOPE)
endfunction()

# Every value that NF12_GPU_TARGETS may list: each gfx name, and "sm" for all of NVIDIA.
function(nf12_all_targets out)
  nf12_names_of(gfx12 targets)
  set(${out} "${targets};sm" PARENT_SCOPE)
endfunction()

set(nf12_clang_flags -x hip --cuda-device-only --no-gpu-bundle-output -nogpulib -nogpuinc)

# NF12_CLANG: one that makes gfx12 code objects, ROCm's own if it is new enough; empty if there is
# none. NF12_CLANG_VERSION: its first line of --version.
function(nf12_find_clang)
  set(candidates ${NF12_CLANG})
  if(NOT candidates)
    foreach(root IN ITEMS "$ENV{ROCM_PATH}" /opt/rocm)
      list(APPEND candidates ${root}/llvm/bin/clang ${root}/lib/llvm/bin/clang)
    endforeach()
    list(APPEND candidates clang-22 clang-21 clang-20 clang)
  endif()
  set(found "")
  set(found_version "")
  foreach(candidate IN LISTS candidates)
    unset(path)
    find_program(path ${candidate} NO_CACHE)
    if(NOT path)
      continue()
    endif()
    execute_process(COMMAND ${path} --version OUTPUT_VARIABLE text ERROR_QUIET)
    string(REGEX MATCH "[^\n]*clang version ([0-9]+)[^\n]*" line "${text}")
    if(NOT line OR CMAKE_MATCH_1 LESS nf12_least_clang)
      continue()
    endif()
    # Its linker is a package of its own, and so may be its AMDGPU backend.
    execute_process(COMMAND ${path} ${nf12_clang_flags} --offload-arch=gfx1201 -o /dev/null /dev/null
                    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE why)
    if(NOT failed)
      set(found ${path})
      set(found_version "${line}")
      break()
    endif()
    string(STRIP "${why}" why)
    message(STATUS "nf12: ${path} makes no gfx12 code objects (is lld missing?): ${why}")
  endforeach()
  set(NF12_CLANG "${found}" PARENT_SCOPE)
  set(NF12_CLANG_VERSION "${found_version}" PARENT_SCOPE)
endfunction()

# NF12_NVCC likewise: on PATH, in CUDA's usual folders, or as a package of `Python_EXECUTABLE`.
function(nf12_find_nvcc)
  set(candidates ${NF12_NVCC})
  if(NOT candidates)
    if(Python_EXECUTABLE)
      execute_process(
        COMMAND ${Python_EXECUTABLE} -c
                "import glob, sysconfig; print(';'.join(sorted(glob.glob(
                 sysconfig.get_path('purelib') + '/nvidia/*/bin/nvcc'), reverse=True)))"
        OUTPUT_VARIABLE packaged OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
    set(candidates nvcc "$ENV{CUDA_HOME}/bin/nvcc" /usr/local/cuda/bin/nvcc ${packaged})
  endif()
  set(found "")
  set(found_version "")
  foreach(candidate IN LISTS candidates)
    unset(path)
    find_program(path ${candidate} NO_CACHE)
    if(NOT path)
      continue()
    endif()
    execute_process(COMMAND ${path} --version OUTPUT_VARIABLE text ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+), V[0-9.]+" line "${text}")
    if(line AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL nf12_least_nvcc)
      set(found ${path})
      set(found_version "nvcc ${line}")
      break()
    endif()
  endforeach()
  set(NF12_NVCC "${found}" PARENT_SCOPE)
  set(NF12_NVCC_VERSION "${found_version}" PARENT_SCOPE)
endfunction()

# Targets of the GPUs in this machine: AMD's from the KFD topology, whose properties say
# "gfx_target_version 120001" for gfx1201; NVIDIA's as nvidia-smi lists them.
function(nf12_targets_of_this_machine out)
  set(nodes /sys/class/kfd/kfd/topology/nodes)
  if(NF12_KFD_NODES)
    set(nodes ${NF12_KFD_NODES})
  endif()
  set(here "")
  file(GLOB properties ${nodes}/*/properties)
  nf12_names_of(gfx12 targets)
  foreach(file IN LISTS properties)
    file(STRINGS ${file} line REGEX "^gfx_target_version [1-9]")
    foreach(target IN LISTS targets)
      string(REGEX REPLACE "^gfx([0-9]+)([0-9])([0-9])$" "\\10\\20\\3" number ${target})
      if(line STREQUAL "gfx_target_version ${number}")
        list(APPEND here ${target})
      endif()
    endforeach()
  endforeach()
  find_program(nvidia_smi nvidia-smi NO_CACHE)
  if(nvidia_smi)
    execute_process(COMMAND ${nvidia_smi} -L OUTPUT_VARIABLE gpus ERROR_QUIET)
    if(gpus MATCHES "GPU [0-9]")
      list(APPEND here sm)
    endif()
  endif()
  list(REMOVE_DUPLICATES here)
  set(${out} "${here}" PARENT_SCOPE)
endfunction()

# Why `target` cannot be built, or an empty string.
function(nf12_why_not target out)
  set(${out} "" PARENT_SCOPE)
  if(target MATCHES "^gfx" AND NOT NF12_CLANG)
    set(${out} "no clang >= ${nf12_least_clang} with lld, in ROCm or on PATH" PARENT_SCOPE)
  elseif(target STREQUAL sm AND NOT NF12_NVCC)
    set(${out} "no nvcc >= ${nf12_least_nvcc} on PATH, in CUDA_HOME or among Python's packages"
        PARENT_SCOPE)
  endif()
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  cmake_policy(VERSION 3.22)
  nf12_find_clang()
  nf12_find_nvcc()
  nf12_all_targets(targets)
  foreach(target IN LISTS targets)
    nf12_why_not(${target} why)
    if(NOT why)
      list(APPEND buildable ${target})
    endif()
  endforeach()
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo "${buildable}")
endif()
