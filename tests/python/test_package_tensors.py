# SPDX-License-Identifier: Apache-2.0
"""client/python without a daemon: tensors, layouts, errors. Tests that need NumPy are skipped without it."""

import array
import ctypes
import gc
import mmap
import os
import pickle
import sys
import unittest
import weakref

import ncclsvc
from ncclsvc import DataType, GroupType, as_buffer
from ncclsvc.library import milliseconds
from ncclsvc.status import Status
from ncclsvc.structs import StatusRecord
from ncclsvc.tensors import destination

try:
    import numpy
except ImportError:
    numpy = None


class Cuda:
    """A tensor in GPU memory, as CuPy and Numba describe it."""

    def __init__(self, **interface):
        self.__cuda_array_interface__ = {"shape": (2, 3), "typestr": "<f4", "data": (0x7000, False), "version": 3,
                                         **interface}


class Tensors(unittest.TestCase):
    def test_the_buffer_protocol(self):
        for code, kind in (("b", DataType.INT8), ("B", DataType.UINT8), ("h", DataType.INT16), ("H", DataType.UINT16),
                           ("i", DataType.INT32), ("I", DataType.UINT32), ("l", DataType.INT64), ("q", DataType.INT64),
                           ("Q", DataType.UINT64), ("f", DataType.FLOAT32), ("d", DataType.FLOAT64)):
            values = array.array(code, range(5))
            buffer = as_buffer(values)
            self.assertEqual((buffer.address, buffer.count), values.buffer_info())
            self.assertEqual((buffer.type, buffer.device, buffer.readonly), (kind, None, False))
            self.assertEqual(buffer.nbytes, 5 * values.itemsize)
        self.assertEqual(as_buffer((ctypes.c_float * 3 * 2)()).shape, (2, 3))
        self.assertEqual(as_buffer(mmap.mmap(-1, 4096)).count, 4096)
        self.assertTrue(as_buffer(b"abc").readonly)
        self.assertEqual(as_buffer(bytearray()).count, 0)

    def test_memory_stays_as_long_as_the_buffer(self):
        values = bytearray(8)
        buffer = as_buffer(values)
        with self.assertRaises(BufferError):
            values.append(1)
        del buffer
        values.append(1)

    def test_what_is_refused(self):
        for bad, error, text in (
                (5, TypeError, "int does not expose its memory"),
                ("abc", TypeError, "str does not expose its memory"),
                ([1.0], TypeError, "list does not expose its memory"),
                (memoryview(bytearray(8))[::2], ValueError, r"shape \(4,\) is not contiguous"),
                (array.array("u", "ab"), TypeError, "format"),
        ):
            with self.assertRaisesRegex(error, text):
                as_buffer(bad)
        with self.assertRaisesRegex(ValueError, "the output: bytes is read-only"):
            destination(b"abc")

    def test_another_type_of_the_same_size(self):
        halves = array.array("H", [0x3F80])
        self.assertIs(as_buffer(halves, DataType.BFLOAT16).type, DataType.BFLOAT16)
        with self.assertRaisesRegex(TypeError, "2 bytes cannot be treated as float32"):
            as_buffer(halves, DataType.FLOAT32)

    def test_memory_of_gpus(self):
        buffer = as_buffer(Cuda())
        self.assertEqual((buffer.address, buffer.shape, buffer.type, buffer.device),
                         (0x7000, (2, 3), DataType.FLOAT32, 0))
        self.assertTrue(as_buffer(Cuda(data=(1, True))).readonly)
        self.assertIs(as_buffer(Cuda(strides=(12, 4))).type, DataType.FLOAT32)
        with self.assertRaisesRegex(ValueError, "not contiguous"):
            as_buffer(Cuda(strides=(4, 8)))
        with self.assertRaisesRegex(TypeError, "<c8"):
            as_buffer(Cuda(typestr="<c8"))

    @unittest.skipUnless(numpy, "needs NumPy")
    def test_numpy(self):
        for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32",
                     "float64", "bool"):
            x = numpy.zeros((2, 3), name)
            buffer = as_buffer(x)
            self.assertEqual(buffer.type, DataType[name.upper()])
            self.assertEqual((buffer.address, buffer.shape), (x.ctypes.data, (2, 3)))
        x = numpy.zeros((4, 6), "f4")
        self.assertEqual(as_buffer(x[1:3]).address, x.ctypes.data + 24)
        self.assertEqual(as_buffer(x[:, :1].T[:, :1]).count, 1)
        self.assertEqual(as_buffer(x[:0, ::2]).count, 0)
        for bad in (x.T, x[:, 1:3], x[::2], x[::-1]):
            with self.assertRaisesRegex(ValueError, "not contiguous in row-major order"):
                as_buffer(bad)
        for bad in (x.astype(">f4"), x.astype("c8"), x.astype(object), x.astype("S3")):
            with self.assertRaises(TypeError):
                as_buffer(bad)
        x.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "ndarray is read-only"):
            destination(x)

    def test_gpu_memory_is_not_the_hosts(self):
        class OnGpu(bytearray):
            """Supports the buffer protocol, but not for its memory, like CuPy's and JAX's arrays; and its DLPack
            refuses, like PyTorch's if another GPU is current."""

            __cuda_array_interface__ = {"shape": (2, 3), "typestr": "<f4", "data": (0x7000, False), "version": 3}

            def __dlpack__(self, **options):
                raise BufferError("another GPU is the current one")

            def __dlpack_device__(self):
                return 2, 3

        buffer = as_buffer(OnGpu(24))
        self.assertEqual((buffer.address, buffer.shape, buffer.type, buffer.device), (0x7000, (2, 3), DataType.FLOAT32, 3))
        del OnGpu.__cuda_array_interface__
        with self.assertRaisesRegex(TypeError, "DLPack: another GPU is the current one"):
            as_buffer(OnGpu(24))

    def test_two_elements_to_a_byte(self):
        for kind in DataType.INT4, DataType.UINT4:
            x = bytearray(6)
            buffer = as_buffer(x, kind)
            self.assertEqual((buffer.shape, buffer.count, buffer.nbytes), ((12,), 6, 6))
            buffer = as_buffer(x, kind, (11, 1))
            self.assertEqual((buffer.shape, buffer.count, buffer.nbytes), ((11, 1), 6, 6))
            self.assertEqual(as_buffer(buffer, DataType.UINT8).shape, (6,))
            part = buffer.elements(2, 3)
            self.assertEqual((part.address, part.shape, part.nbytes), (buffer.address + 2, (6,), 3))
            for bad in (10,), (13,):
                with self.assertRaisesRegex(ValueError, "bytes, not 6"):
                    as_buffer(x, kind, bad)
            with self.assertRaisesRegex(TypeError, "cannot be treated as"):
                as_buffer(memoryview(bytearray(8)).cast("i"), kind)

    def test_unpacked_int4_says_how_to_pack(self):
        class Unpacked:
            """Like a NumPy array of ml_dtypes.int4."""

            dtype = type("dtype", (), {"name": "int4"})

        with self.assertRaisesRegex(TypeError, r"a byte for each int4: .*as_buffer\(x, DataType.INT4\)"):
            as_buffer(Unpacked())

    @unittest.skipUnless(numpy, "needs NumPy")
    def test_dlpack(self):
        class Foreign:
            """Supports DLPack but not the buffer protocol, like PyTorch's tensors."""

            def __init__(self, x):
                self.x = x

            def __dlpack__(self, **options):
                return self.x.__dlpack__()

            def __dlpack_device__(self):
                return self.x.__dlpack_device__()

        x = numpy.arange(12, dtype="i8").reshape(3, 4)
        buffer = as_buffer(Foreign(x[1:]))
        self.assertEqual((buffer.address, buffer.shape, buffer.type, buffer.device),
                         (x.ctypes.data + 32, (2, 4), DataType.INT64, None))
        for bad in (x.T, x[:, :2]):
            with self.assertRaisesRegex(ValueError, "not contiguous"):
                as_buffer(Foreign(bad))
        with self.assertRaisesRegex(TypeError, "a type that ncclsvc does not support"):
            as_buffer(Foreign(x.astype("c16")))
        gone, buffer = weakref.ref(x), as_buffer(Foreign(x))
        del x
        gc.collect()
        self.assertIsNotNone(gone())
        del buffer, bad
        gc.collect()
        self.assertIsNone(gone())


class Arithmetic(unittest.TestCase):
    def test_layouts(self):
        layout = ncclsvc.layout_of(5, world=16, local=4, data=4, horizontal=2, pipeline=2)
        self.assertEqual((layout.rank, layout.local_rank, layout.node, layout.nodes), (5, 1, 1, 4))
        self.assertEqual(list(layout.groups[GroupType.DATA].ranks), [1, 3, 5, 7])
        self.assertEqual(layout.groups[GroupType.DATA].index, 2)
        self.assertEqual(list(layout.groups[GroupType.PIPELINE].ranks), [5, 13])
        with self.assertRaisesRegex(ncclsvc.InvalidArgumentError, "rank") as caught:
            ncclsvc.layout_of(16, world=16, local=4, data=16)
        self.assertIsInstance(caught.exception, ValueError)

    def test_lists_are_laid_out(self):
        self.assertEqual(ncclsvc.aggregate([24, 512, 4, 0, 100]), ([0, 256, 768, 1024, 1024], 1124))
        self.assertEqual(ncclsvc.partition(950, 4), (950, 1024, 256))
        self.assertEqual(ncclsvc.partition_tensors([480, 470], 2), ([0, 1], (950, 960, 480)))
        with self.assertRaisesRegex(ncclsvc.InvalidArgumentError, "tensor 1|tensor 0"):
            ncclsvc.partition_tensors([470, 480], 2)
        views, divided = ncclsvc.partition_fit([470, 0, 480], 2)
        self.assertEqual(views, [(0, 0, 470, 0), (1, 0, 0, 0), (2, 0, 10, 0), (2, 10, 470, 1)])
        self.assertEqual(divided, (950, 960, 480))
        self.assertEqual(ncclsvc.partition_tensors([v.count for v in views], 2), ([0, 0, 0, 1], divided))
        self.assertEqual(ncclsvc.partition_fit([], 3), ([], (0, 96, 32)))
        with self.assertRaisesRegex(ncclsvc.InvalidArgumentError, "size is 0"):
            ncclsvc.partition_fit([1], 0)
        with self.assertRaisesRegex(ValueError, "must not be negative"):
            ncclsvc.aggregate([-1])

    def test_timeouts(self):
        self.assertEqual([milliseconds(t) for t in (None, 0, 0.0001, 1.5, 10**10)], [-1, 0, 1, 1500, 2**31 - 1])
        for bad in (-1, float("nan")):
            with self.assertRaisesRegex(ValueError, "a timeout must be"):
                milliseconds(bad)

    def test_ids(self):
        one, other = ncclsvc.UniqueId(), ncclsvc.UniqueId()
        self.assertNotEqual(one, other)
        self.assertEqual(ncclsvc.UniqueId(bytes(one)), one)
        self.assertEqual(one.derive("a"), ncclsvc.UniqueId(bytes(one)).derive("a"))
        self.assertNotEqual(one.derive("a"), one.derive("b"))
        with self.assertRaisesRegex(ValueError, "128 bytes, not 3"):
            ncclsvc.UniqueId(b"abc")


class Errors(unittest.TestCase):
    def test_who_is_to_blame(self):
        gone = StatusRecord(result=-5, rank_a=3, pid_a=77, rank_b=-1)
        lone = StatusRecord(result=-4, rank_a=0, pid_a=1, rank_b=2, pid_b=9, missing_count=1)
        lone.missing[0] = 2
        two = StatusRecord(result=-4, rank_a=0, pid_a=1, rank_b=1, pid_b=9)
        late = StatusRecord(result=-6, rank_a=-1, rank_b=-1, missing_count=1)
        late.missing[0] = 1
        for record, rank, pid in ((gone, 3, 77), (lone, 2, 9), (two, None, None), (late, 1, None)):
            error = ncclsvc.errors.error_of(record.result, "text", Status.of(record))
            self.assertEqual((error.rank, error.pid, error.code), (rank, pid, record.result))
        error = ncclsvc.errors.error_of(-5, "x: rank 2 (pid 7, train.py) was killed by SIGKILL")
        self.assertEqual((error.rank, error.pid), (2, 7))
        self.assertIsInstance(error, ncclsvc.PeerGoneError)
        self.assertIsInstance(ncclsvc.errors.error_of(-6, ""), TimeoutError)
        self.assertIn("-99", str(ncclsvc.errors.error_of(-99, "new")))

    def test_errors_are_pickled(self):
        error = pickle.loads(pickle.dumps(ncclsvc.errors.error_of(-5, "rank 2 (pid 7) died")))
        self.assertEqual((type(error), str(error), error.rank), (ncclsvc.PeerGoneError, "rank 2 (pid 7) died", 2))

    def test_without_a_daemon(self):
        with self.assertRaisesRegex(ncclsvc.DaemonLostError, "no daemon listens"):
            ncclsvc.Session(socket=os.path.join(os.sep, "nowhere", "s"))


if __name__ == "__main__":
    if not __debug__:
        sys.exit("tests need their assertions: run without -O")
    unittest.main()
