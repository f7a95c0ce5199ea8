# SPDX-License-Identifier: Apache-2.0
# JAX with the allocator that XLA_PYTHON_CLIENT_ALLOCATOR names: a loop of small operations, each of which makes buffers.
# Prints a digest of the results, seconds, and rounds a second; TAG labels the line.
import hashlib
import os
import sys
import time

os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")
import jax
import jax.numpy as jnp
import numpy as np

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 300
digest = hashlib.sha256()
x = jnp.arange(4096, dtype=jnp.float32).reshape(64, 64)
w = jax.random.normal(jax.random.PRNGKey(3), (64, 64))


def step(x, i):
    y = jnp.tanh(x @ w * 0.1)  # outside of jit: each operation has a result of its own
    y = y + jnp.float32(i % 7) * 0.01
    z = jnp.concatenate([y, y * 0.5]).reshape(2, 64, 64).sum(0)
    return z - z.mean()


for i in range(20):
    x = step(x, i)
x.block_until_ready()
start = time.time()
for i in range(rounds):
    x = step(x, i)
    if i % 25 == 0:
        digest.update(np.asarray(x).tobytes())
digest.update(np.asarray(x).tobytes())
seconds = time.time() - start
print(f"{os.environ.get('TAG', ''):24} digest {digest.hexdigest()[:16]} seconds {seconds:7.3f} rounds/s {rounds / seconds:8.1f}", flush=True)
