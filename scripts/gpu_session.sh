#!/bin/bash
# Run experiments one after another on a GPU for at most SECONDS, from a checkout that is not installed, and
# pack every finished result into OUT. Called again on the same machine, it continues from its cache.
#
# Example: bash scripts/gpu_session.sh 560 /tmp/results bench_gpu real_card e4m3_dynamics
# Wheels in .wheels/ are installed first, for a machine without network; GIT_DIR may name a copied history.
set -u
seconds=$1 out=$2; shift 2
began=$SECONDS
mkdir -p "$out" runs/gpu
if compgen -G ".wheels/*.whl" > /dev/null; then
  python3 -m pip install -q --no-index --no-deps --target /tmp/site .wheels/*.whl || exit 1
fi
export PYTHONPATH=/tmp/site:$PWD PYTHONUNBUFFERED=1 XLA_PYTHON_CLIENT_PREALLOCATE=false
# Training runs are compiled with these flags anyway (`GPU_OPTIONS`); measurements of products need them, too.
export XLA_FLAGS="--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
echo "commit $(git rev-parse HEAD), changed files: $(git status --porcelain | wc -l)"
for name in "$@"; do
  left=$((seconds - SECONDS + began))
  ((left > 0)) || break
  timeout "$left" python3 -m simlab run "$name" -y --out "runs/gpu/$name" > "$out/$name.log" 2>&1
  echo "$name: status $? after $((SECONDS - began)) s"
  [ -f "runs/gpu/$name/manifest.json" ] && tar czf "$out/$name.tgz" -C runs/gpu "$name"
done
