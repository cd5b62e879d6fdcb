# SPDX-License-Identifier: Apache-2.0
"""A stand-in for ONNX Runtime with its CUDA provider: it calls the operators with device memory and a stream of the
CUDA stand-in. It only implements what the operators use; anything else returns an error status. Environment:
ORT_LIBRARY, ORT_ABI (ort_abi.h, which numbers the interface's entries)."""

import ctypes
import os
import re
import traceback
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint, c_uint64, c_void_p, cast

CUDA_PROVIDER = "CUDAExecutionProvider"
FLOAT, INT64, BOOL = 1, 7, 9
C_TYPES = {FLOAT: ctypes.c_float, INT64: c_int64, BOOL: ctypes.c_bool}
GOOD = None  # a status
ENTRIES = 300
OPERATOR = ["CreateKernel", "GetName", "GetExecutionProviderType", "GetInputType", "GetInputTypeCount", "GetOutputType",
            "GetOutputTypeCount", "KernelCompute", "KernelDestroy", "GetInputCharacteristic",
            "GetOutputCharacteristic", "GetInputMemoryType", "GetVariadicInputMinArity",
            "GetVariadicInputHomogeneity", "GetVariadicOutputMinArity", "GetVariadicOutputHomogeneity",
            "CreateKernelV2", "KernelComputeV2"]


class Cuda:
    """The stand-in's driver, with the device's context and a stream."""

    def __init__(self, device):
        self.driver, context, stream = ctypes.CDLL("libcuda.so.1"), c_void_p(), c_void_p()
        self("cuInit", c_uint(0))
        self("cuDevicePrimaryCtxRetain", byref(context), c_int(device))
        self("cuCtxSetCurrent", context)
        self("cuStreamCreate", byref(stream), c_uint(1))
        self.stream = stream.value

    def __call__(self, name, *arguments):
        result = self.driver[name](*arguments)
        if result:
            raise AssertionError(f"{name}: {result}")

    def allocate(self, size):
        at = c_uint64()
        self("cuMemAlloc_v2", byref(at), c_size_t(size))
        return at.value

    def tensor(self, kind, values):
        data = (C_TYPES[kind] * len(values))(*values)
        at = self.allocate(ctypes.sizeof(data))
        self("cuMemcpyHtoD_v2", c_uint64(at), data, c_size_t(ctypes.sizeof(data)))
        return Tensor(kind, [len(values)], at)

    def read(self, tensor):
        """The tensor's elements, once the stream has reached them."""
        data = (C_TYPES[tensor.kind] * tensor.count)()
        self("cuStreamSynchronize", c_void_p(self.stream))
        if tensor.count:
            self("cuMemcpyDtoH_v2", data, c_uint64(tensor.data), c_size_t(ctypes.sizeof(data)))
        return list(data)


class Tensor:
    """A tensor; also stands for a type alone, whose data is not read."""

    def __init__(self, kind, dims, data=0):
        self.kind, self.dims, self.data = kind, list(dims), data

    @property
    def count(self):
        n = 1
        for dim in self.dims:
            n *= dim
        return n


def on_host(kind, value):
    """A scalar; it lives as long as the tensor."""
    tensor = Tensor(kind, [])
    tensor.memory = C_TYPES[kind](value)
    tensor.data = ctypes.addressof(tensor.memory)
    return tensor


def store(at, value, kind=c_void_p):
    cast(at, POINTER(kind))[0] = value


class Runtime:
    """One process's runtime. The library holds objects as numbers, which `objects` maps to the objects."""

    def __init__(self, cuda, device):
        self.cuda, self.device = cuda, device
        self.objects, self.operators, self._kept = {}, [], []
        self._table = (c_void_p * ENTRIES)()
        with open(os.environ["ORT_ABI"], encoding="utf-8") as header:
            numbers = {name: int(n) for n, name in re.findall(r"ORT_ENTRY\((\d+), (\w+)\)", header.read())}
        for name, number in numbers.items():
            self._enter(number, getattr(self, name, None), name)
        self._register()

    def _enter(self, number, method, name):
        """Makes the entry call the method, whose annotations are the C types; an entry without a method is refused."""
        def call(*arguments):
            try:
                return method(*arguments) if method else self.status(f"the stand-in has no {name}")
            except BaseException:  # no exception may pass the library's frames
                traceback.print_exc()
                os._exit(3)

        kinds = dict(method.__annotations__) if method else {}
        entry = ctypes.CFUNCTYPE(kinds.pop("return", c_void_p), *kinds.values())(call)
        self._kept.append(entry)
        self._table[number] = cast(entry, c_void_p).value

    def _register(self):
        get_api = ctypes.CFUNCTYPE(c_void_p, c_uint)(lambda version: ctypes.addressof(self._table))
        version = ctypes.create_string_buffer(b"stand-in")
        get_version = ctypes.CFUNCTYPE(c_void_p)(lambda: ctypes.addressof(version))
        base = (c_void_p * 2)(cast(get_api, c_void_p).value, cast(get_version, c_void_p).value)
        self._kept += [get_api, version, get_version, base]
        library = ctypes.CDLL(os.environ["ORT_LIBRARY"])
        library.RegisterCustomOps.restype = c_void_p
        self.check(library.RegisterCustomOps(c_void_p(self.new(None)), base))

    def new(self, thing):
        self.objects[len(self.objects) + 1] = thing
        return len(self.objects)

    def status(self, text, code=1):
        return self.new((code, text))

    def check(self, status):
        if status:
            raise RuntimeError(self.objects[status][1])

    # ---- As a user of ONNX Runtime ----

    def _call(self, operator, name, returns, *types):
        functions = cast(operator + 8, POINTER(c_void_p))
        return ctypes.CFUNCTYPE(returns, *types)(functions[OPERATOR.index(name)])

    def kernel(self, name, inputs, outputs, provider=CUDA_PROVIDER, **attributes):
        """The kernel of a node with these inputs and outputs."""
        for operator in self.operators:
            its = self._call(operator, "GetExecutionProviderType", c_char_p, c_void_p)(operator)
            if (self._call(operator, "GetName", c_char_p, c_void_p)(operator).decode() == name
                    and (its.decode() if its else None) == provider):
                break
        else:
            raise KeyError(f"{name} of {provider}")
        info = self.new({"inputs": inputs, "outputs": outputs, "attributes": attributes})
        kernel = c_void_p()
        create = self._call(operator, "CreateKernelV2", c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
        self.check(create(operator, ctypes.addressof(self._table), info, ctypes.addressof(kernel)))
        return operator, kernel, outputs

    def run(self, kernel, inputs):
        """Returns the outputs, allocated where the provider puts them."""
        operator, kernel, outputs = kernel
        context = self.new({"inputs": [self.new(tensor) for tensor in inputs], "types": outputs,
                            "outputs": [0] * len(outputs)})
        self.check(self._call(operator, "KernelComputeV2", c_void_p, c_void_p, c_void_p)(kernel, context))
        return [self.objects.get(output) for output in self.objects[context]["outputs"]]

    # ---- The interface: the entries that operators call ----

    def CreateStatus(self, code: c_int, text: c_char_p):
        return self.status(text.decode(), code)

    def GetErrorCode(self, status: c_void_p) -> c_int:
        return self.objects[status][0]

    def GetErrorMessage(self, status: c_void_p):
        text = ctypes.create_string_buffer(self.objects[status][1].encode())
        self._kept.append(text)
        return ctypes.addressof(text)

    def ReleaseStatus(self, status: c_void_p) -> None:
        pass

    def CreateCustomOpDomain(self, name: c_char_p, domain: c_void_p):
        store(domain, self.new(name))
        return GOOD

    def CustomOpDomain_Add(self, domain: c_void_p, operator: c_void_p):
        self.operators.append(operator)
        return GOOD

    def AddCustomOpDomain(self, options: c_void_p, domain: c_void_p):
        return GOOD

    def GetTensorMutableData(self, tensor: c_void_p, data: c_void_p):
        store(data, self.objects[tensor].data)
        return GOOD

    def CastTypeInfoToTensorInfo(self, info: c_void_p, tensor: c_void_p):
        store(tensor, info)
        return GOOD

    def GetTensorElementType(self, info: c_void_p, kind: c_void_p):
        store(kind, self.objects[info].kind, c_int)
        return GOOD

    def GetDimensionsCount(self, info: c_void_p, n: c_void_p):
        store(n, len(self.objects[info].dims), c_size_t)
        return GOOD

    def GetDimensions(self, info: c_void_p, dims: POINTER(c_int64), n: c_size_t):
        for i, dim in enumerate(self.objects[info].dims[:n]):
            dims[i] = dim
        return GOOD

    def GetTensorShapeElementCount(self, info: c_void_p, n: c_void_p):
        store(n, self.objects[info].count, c_size_t)
        return GOOD

    def GetTensorTypeAndShape(self, tensor: c_void_p, info: c_void_p):
        store(info, tensor)
        return GOOD

    def ReleaseTensorTypeAndShapeInfo(self, info: c_void_p) -> None:
        pass

    def ReleaseTypeInfo(self, info: c_void_p) -> None:
        pass

    def MemoryInfoGetId(self, info: c_void_p, number: c_void_p):
        store(number, self.device, c_int)
        return GOOD

    def KernelInfoGetAllocator(self, info: c_void_p, memory: c_int, allocator: c_void_p):
        store(allocator, info)
        return GOOD

    def AllocatorGetInfo(self, allocator: c_void_p, info: c_void_p):
        store(info, allocator)
        return GOOD

    def ReleaseAllocator(self, allocator: c_void_p) -> None:
        pass

    def KernelInfoGetAttribute_int64(self, info: c_void_p, name: c_char_p, to: c_void_p):
        value = self.objects[info]["attributes"].get(name.decode())
        if not isinstance(value, int):
            return self.status("no such attribute")
        store(to, value, c_int64)
        return GOOD

    def KernelInfo_GetInputCount(self, info: c_void_p, n: c_void_p):
        store(n, len(self.objects[info]["inputs"]), c_size_t)
        return GOOD

    def KernelInfo_GetOutputCount(self, info: c_void_p, n: c_void_p):
        store(n, len(self.objects[info]["outputs"]), c_size_t)
        return GOOD

    def KernelInfo_GetInputTypeInfo(self, info: c_void_p, i: c_size_t, type_info: c_void_p):
        store(type_info, self.new(self.objects[info]["inputs"][i]))
        return GOOD

    def KernelInfo_GetOutputTypeInfo(self, info: c_void_p, i: c_size_t, type_info: c_void_p):
        store(type_info, self.new(self.objects[info]["outputs"][i]))
        return GOOD

    def KernelContext_GetInputCount(self, context: c_void_p, n: c_void_p):
        store(n, len(self.objects[context]["inputs"]), c_size_t)
        return GOOD

    def KernelContext_GetOutputCount(self, context: c_void_p, n: c_void_p):
        store(n, len(self.objects[context]["outputs"]), c_size_t)
        return GOOD

    def KernelContext_GetInput(self, context: c_void_p, i: c_size_t, tensor: c_void_p):
        store(tensor, self.objects[context]["inputs"][i])
        return GOOD

    def KernelContext_GetOutput(self, context: c_void_p, i: c_size_t, dims: POINTER(c_int64), n: c_size_t,
                                tensor: c_void_p):
        its = self.objects[context]
        made = Tensor(its["types"][i].kind, dims[:n])
        if made.count:
            made.data = self.cuda.allocate(made.count * ctypes.sizeof(C_TYPES[made.kind]))
        its["outputs"][i] = self.new(made)
        store(tensor, its["outputs"][i])
        return GOOD

    def KernelContext_GetGPUComputeStream(self, context: c_void_p, stream: c_void_p):
        store(stream, self.cuda.stream)
        return GOOD
