# SPDX-License-Identifier: Apache-2.0
"""client/python on GPUs: device memory and streams. On the stand-ins for CUDA and NCCL, which LD_LIBRARY_PATH
names, or by hand on two real GPUs without them, where arrays of CuPy, PyTorch and JAX are tested too:

    NCCLSVCD=.../ncclsvcd NCCLSVC_LIBRARY=.../libncclsvc.so.0 PYTHONPATH=client/python:tests/python:tests/fuzz \\
        python3 tests/python/test_package_gpus.py

Environment: NCCLSVCD; NCCLSVC_FAKE_GPUS=2 for the stand-ins."""

import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import ncclsvc
from package_ranks import run
from test_client import Daemon

T = 60
N = 2


class Cuda:
    """The parts of the driver that this test needs, for one device."""

    def __init__(self, device):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.device = device
        context = c_void_p()
        self("cuInit", c_uint(0))
        self("cuDevicePrimaryCtxRetain", byref(context), c_int(device))
        self("cuCtxSetCurrent", context)

    def __call__(self, name, *arguments):
        result = self.lib[name](*arguments)
        if result:
            raise AssertionError(f"{name}: {result}")

    def stream(self):
        stream = c_void_p()
        self("cuStreamCreate", byref(stream), c_uint(1))
        return stream.value

    def array(self, values):
        return Array(self, values)


class Array:
    """An array of floats in device memory, described as CuPy does."""

    def __init__(self, cuda, values, address=None):
        self.cuda, self.n = cuda, len(values)
        pointer = c_uint64(address or 0)
        if not address:
            cuda("cuMemAlloc_v2", byref(pointer), c_size_t(4 * self.n))
        self.address = pointer.value
        self.write(values)
        self.__cuda_array_interface__ = {"shape": (self.n,), "typestr": "<f4", "data": (self.address, False), "version": 3}

    def write(self, values):
        self.cuda("cuMemcpyHtoD_v2", c_uint64(self.address), (ctypes.c_float * self.n)(*values), c_size_t(4 * self.n))
        self.cuda("cuCtxSynchronize")  # such a copy from pageable memory may return before it has arrived

    def read(self):
        values = (ctypes.c_float * self.n)()
        self.cuda("cuMemcpyDtoH_v2", values, c_uint64(self.address), c_size_t(4 * self.n))
        return list(values)


def on_gpus(rank, comm_id):
    with ncclsvc.Session() as session:
        cuda = Cuda(rank)
        comm = session.join(comm_id, N, rank, device=rank, timeout=T)
        stream = cuda.stream()
        x, y = cuda.array([rank + 1.0] * 1000), cuda.array([0.0] * 1000)
        with session.stream(stream):
            tasks = [comm.all_reduce(x, y) for _ in range(3)]
            cuda("cuStreamSynchronize", c_void_p(stream))  # not a call of the library
        assert y.read() == [3.0] * 1000
        assert session._thread.order.stream == 0
        for task in tasks:
            task.wait(T)
        whole = cuda.array([0.0] * 2000)
        with session.stream(stream, detached=True):
            task = comm.all_gather(x, whole)
        session.stream_wait(stream, task)
        cuda("cuStreamSynchronize", c_void_p(stream))
        assert whole.read() == [1.0] * 1000 + [2.0] * 1000
        with session.stream(stream), session.group():
            comm.send(x, 1 - rank)
            got = comm.recv(y, 1 - rank)
        got.wait(T)
        assert y.read() == [2.0 - rank] * 1000
        # Memory that the session allocates.
        own = session.alloc_device(rank, 4000)
        assert own.nbytes == 4000 and ncclsvc.as_buffer(own).count == 4000
        z = Array(cuda, [rank + 1.0] * 1000, address=own.address)
        comm.all_reduce(z, op=ncclsvc.ReduceOp.MAX).wait(T)
        assert z.read() == [2.0] * 1000
        del own, z
        scaled = comm.premulsum(ctypes.c_float(10.0 * (rank + 1)))
        comm.all_reduce(x, y, scaled).wait(T)
        assert y.read() == [50.0] * 1000
        scaled.destroy()
        with ncclsvc.Lists(comm) as lists:
            lists.all_reduce([x, y])
            cuda("cuCtxSynchronize")
            assert x.read() == [3.0] * 1000 and y.read() == [100.0] * 1000
        for bad, kind, text in ((bytearray(4), ValueError, "the host's memory, but the communicator is for a GPU's"),
                                (ncclsvc.Buffer(64, ncclsvc.DataType.FLOAT32, (1,), rank), ncclsvc.Error, "")):
            try:
                comm.all_reduce(bad)
                raise AssertionError(f"{bad} was taken")
            except kind as error:
                assert text in str(error), error
        cuda("cuCtxSynchronize")
        assert bool(comm.gpu_bytes) == (os.environ.get("NCCLSVC_PEER") != "0")
        comm.suspend(T)
        try:
            comm.all_reduce(x)
            raise AssertionError("a suspended communicator took an operation")
        except ValueError as error:
            assert "suspended" in str(error), error
        comm.resume(T)
        x = cuda.array([rank + 1.0] * 1000)
        comm.all_reduce(x).wait(T)
        assert x.read() == [3.0] * 1000
        assert {d.device for d in session.devices()} == {0, 1}
        comm.barrier().wait(T)
        assert comm.error() is None
        return True


def cupy_array(rank):
    import cupy

    cupy.cuda.Device(rank).use()
    return cupy.full(1000, rank + 1, dtype=cupy.float32), lambda x: x.get().tolist(), cupy.cuda.get_current_stream()


def torch_array(rank):
    import torch

    x = torch.full((10, 100), rank + 1.0, device=f"cuda:{rank}")
    return x, lambda x: x.flatten().tolist(), torch.cuda.current_stream(rank)


def jax_array(rank):
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    x = jax.device_put(jax.numpy.full(1000, rank + 1.0), jax.devices()[rank])
    return x.block_until_ready(), lambda x: jax.device_get(x).tolist(), None


def of_a_library(rank, comm_id, make):
    """Another library's arrays, used without a copy, in the order of its stream."""
    x, values, stream = make(rank)
    with ncclsvc.Session() as session:
        comm = session.join(comm_id, N, rank, device=rank, timeout=T)
        y = Cuda(rank).array([0.0] * 1000)
        with session.stream(stream):
            comm.all_reduce(x, y).wait(T)
        assert y.read() == [3.0] * 1000
        assert values(x) == [rank + 1.0] * 1000
        if make is not jax_array:  # JAX's arrays are read-only
            with session.stream(stream):
                comm.all_reduce(x).wait(T)
            assert values(x) == [3.0] * 1000
    return True


OWNER, TRAINER = 65531, 65532  # users
PR_SET_DUMPABLE = 4

# Starts the daemon as the system's service, confined like its unit: no capabilities, and a network of its own, which has
# only the loopback interface.
CONFINED = """#!{python}
import ctypes, fcntl, os, socket, struct, sys

CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 0x40000000, 0x8914, 1, 24, 38
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(CLONE_NEWNET):
    sys.exit(os.strerror(ctypes.get_errno()))
with socket.socket() as s:
    fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
for capability in range(64):
    libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
os.setgroups([])
os.setgid({owner})
os.setuid({owner})
libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
os.execv("{daemon}", ["ncclsvcd"] + sys.argv[1:])
"""


def of_another_user(rank, comm_id):
    """A rank whose user is neither root nor the daemon's."""
    os.setgroups([])
    os.setgid(TRAINER)
    os.setuid(TRAINER)
    # The stand-ins open each other's memory by /proc, which setuid forbids.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    return on_gpus(rank, comm_id)


def confined(directory):
    """A script that starts the daemon as the system's service, or None if this machine does not allow that."""
    script = os.path.join(directory, "confined")
    with open(script, "w", encoding="utf-8") as file:
        file.write(CONFINED.format(python=sys.executable, owner=OWNER, daemon=os.environ["NCCLSVCD"]))
    os.chmod(script, 0o755)
    try:
        works = not subprocess.run([script, "--version"], capture_output=True, check=False, timeout=T).returncode
    except OSError:
        works = False
    return script if works else None


class Gpus(unittest.TestCase):
    @unittest.skipIf(os.geteuid(), "only root can start processes of two users")
    def test_other_users(self):
        with tempfile.TemporaryDirectory(prefix="ncclsvc-users-") as directory:
            script = confined(directory)
            if not script:
                self.skipTest("no network namespaces, or other users cannot read the daemon's program")
            os.chown(directory, OWNER, OWNER)
            os.chmod(directory, 0o755)
            fake = os.path.join(directory, "fake")
            os.mkdir(fake)
            os.chmod(fake, 0o1777)
            plain = {"NCCLSVCD": os.environ["NCCLSVCD"]}
            os.environ.update(NCCLSVCD=script, NCCLSVC_FAKE_DIR=fake, NCCLSVC_DAEMON_USER=str(OWNER))
            extra = {k: os.environ[k] for k in ("NCCLSVC_FAKE_DIR", "NCCLSVC_FAKE_GPUS") if k in os.environ}
            daemon = Daemon("--device", "cuda", "--mps", "off", "--access", "any",
                            socket=os.path.join(directory, "s"), HOME=directory, **extra)
            os.environ.update(plain, NCCLSVC_SOCKET=daemon.path)
            # With kernels; and with NCCL only, whose workers cannot open other users' memory on the stand-ins.
            for peer in ("1",) if "NCCLSVC_FAKE_GPUS" in os.environ else ("1", "0"):
                os.environ["NCCLSVC_PEER"] = peer
                self.assertEqual(run(N, of_another_user, os.urandom(128)), [True] * N)
            code, log = daemon.stop()
            self.assertEqual(code, 0, log)

    def test_arrays_of_libraries(self):
        if "NCCLSVC_FAKE_GPUS" in os.environ:
            self.skipTest("CuPy, PyTorch and JAX need real GPUs")
        daemon = Daemon("--device", "cuda", "--mps", "off")
        os.environ["NCCLSVC_SOCKET"] = daemon.path
        for name, make in (("cupy", cupy_array), ("torch", torch_array), ("jax", jax_array)):
            if importlib.util.find_spec(name):
                with self.subTest(name):
                    self.assertEqual(run(N, of_a_library, os.urandom(128), make), [True] * N)
        code, log = daemon.stop()
        self.assertEqual(code, 0, log)

    def test_two_gpus(self):
        with tempfile.TemporaryDirectory(prefix="ncclsvc-fake-") as fake:
            os.environ["NCCLSVC_FAKE_DIR"] = fake
            extra = {k: os.environ[k] for k in ("NCCLSVC_FAKE_DIR", "NCCLSVC_FAKE_GPUS") if k in os.environ}
            daemon = Daemon("--device", "cuda", "--mps", "off", **extra)
            os.environ["NCCLSVC_SOCKET"] = daemon.path
            for peer in ("1", "0"):  # with the library's kernels, and with NCCL only
                os.environ["NCCLSVC_PEER"] = peer
                self.assertEqual(run(N, on_gpus, os.urandom(128)), [True] * N)
            code, log = daemon.stop()
            self.assertEqual(code, 0, log)


if __name__ == "__main__":
    if not __debug__:
        sys.exit("tests need their assertions: run without -O")
    unittest.main()
