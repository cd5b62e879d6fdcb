# SPDX-License-Identifier: Apache-2.0
"""The declarations of client/python equal the public headers': functions, structs and numbers. Environment: CC, the
compiler; INCLUDE, the headers' directories, separated by colons; PYTHONPATH, NCCLSVC_LIBRARY."""

import ctypes
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from ncclsvc import enums, library, structs

HEADERS = ("ncclsvc_types.h", "ncclsvc.h", "ncclsvc_world.h", "ncclsvc_tensors.h", "ncclsvc_plan.h")
INCLUDE = os.environ["INCLUDE"].split(":")
LISTS = {  # an X macro of the headers, the prefix of its names, and the counterpart here
    "NCCLSVC_RESULTS": ("NCCLSVC_", enums.Result),
    "NCCLSVC_OPS": ("NCCLSVC_", enums.Op),
    "NCCLSVC_TYPES": ("NCCLSVC_", enums.DataType),
    "NCCLSVC_REDOPS": ("NCCLSVC_", enums.ReduceOp),
    "NCCLSVC_STATES": ("NCCLSVC_", enums.TaskState),
    "NCCLSVC_FIELDS": ("NCCLSVC_FIELD_", enums.Field),
    "NCCLSVC_REFUSALS": ("NCCLSVC_REFUSAL_", enums.Refusal),
    "NCCLSVC_ENDINGS": ("NCCLSVC_ENDED_", enums.Ending),
    "NCCLSVC_FAILURES": ("NCCLSVC_FAILURE_", enums.FailureKind),
}
CONSTANTS = ("ID_BYTES", "NAME_BYTES", "LABEL_BYTES", "REFUSED_BYTES", "MISSING_SHOWN", "EPOCH_STEPS", "LATENESS_BINS",
             "FAILURE_RANKS", "FAILURE_BYTES", "RANK_LAUNCHER", "WORLD_LAUNCHER", "DEVICE_HOST", "DEVICE_LOCAL",
             "STREAM_DETACHED", "MESSAGE_ONE_BUFFER", "DIMS_MAX", "GROUP_TYPES",
             "PLAN_ANY", "PLAN_FIRST", "PLANNED_WAIT", "PLANNED_STABLE")
NUMBERS = {"size_t": ctypes.c_size_t, "uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64,
           "uint32_t": ctypes.c_uint32, "unsigned": ctypes.c_uint, "int": ctypes.c_int, "bool": ctypes.c_bool,
           "ncclsvc_task": ctypes.c_uint64}
ENUMS = {"ncclsvc_result", "ncclsvc_type", "ncclsvc_redop", "ncclsvc_group_type", "ncclsvc_shapes"}


def header(name):
    for directory in INCLUDE:
        path = os.path.join(directory, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return re.sub(r"/\*.*?\*/|^[ \t]*#(?:\\\n|[^\n])*$", " ", file.read(), flags=re.S | re.M)
    raise AssertionError(f"no {name} in {INCLUDE}")


def compiled(lines):
    """The output of a C program with these statements."""
    with tempfile.TemporaryDirectory(prefix="ncclsvc-abi-") as directory:
        source, program = os.path.join(directory, "abi.c"), os.path.join(directory, "abi")
        with open(source, "w", encoding="utf-8") as file:
            file.write("#include <stddef.h>\n#include <stdio.h>\n")
            file.writelines(f"#include <{name}>\n" for name in HEADERS)
            file.write("int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n")
        subprocess.run([*shlex.split(os.environ["CC"]), source, "-o", program, *("-I" + i for i in INCLUDE)],
                       check=True, timeout=60)
        return subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.splitlines()


def prototypes():
    """(return type, name, parameter types) of every function in the headers."""
    for name in HEADERS:
        for match in re.finditer(r"^((?:const )?\w+ \**)(?:ncclsvc_)(\w+)\(([^()]*)\);", header(name), re.M):
            returns, function, parameters = (" ".join(part.split()) for part in match.groups())
            types = [] if parameters == "void" else [re.sub(r"\w+$", "", p.strip()).strip()
                                                     for p in parameters.split(",") if p.strip() != "..."]
            yield returns, function, types


def declared(name):
    if name in library.RESULTS:
        return ctypes.c_int, library.RESULTS[name]
    return library.OTHERS[name]


def expected(c_type):
    """The set of ctypes types that may represent a C type."""
    plain = c_type.replace("const ", "").replace("struct ", "")
    if plain == "void":
        return {None}
    if plain in ENUMS:
        return {ctypes.c_int}
    if plain in NUMBERS:
        return {NUMBERS[plain]}
    if plain == "char *":
        return {ctypes.c_char_p}
    if plain == "ncclsvc_callback *":
        return {library.CALLBACK}
    pointed, stars = plain.rstrip("*").strip(), plain.count("*")
    known = structs.NAMES.get(pointed) or NUMBERS.get(pointed) or (ctypes.c_int if pointed in ENUMS else None)
    if stars == 0:
        return {known}
    if stars == 1:
        return {ctypes.POINTER(known) if known else ctypes.c_void_p}
    return {ctypes.POINTER(ctypes.POINTER(known)) if known else ctypes.POINTER(ctypes.c_void_p)}


class Abi(unittest.TestCase):
    def test_every_function_is_declared_as_in_the_headers(self):
        found = list(prototypes())
        names = [name for _, name, _ in found]
        self.assertEqual(sorted(names), sorted([*library.RESULTS, *library.OTHERS]))
        for returns, name, types in found:
            result, arguments = declared(name)
            with self.subTest(function=name):
                self.assertIn(result, expected(returns))
                self.assertEqual(len(arguments), len(types))
                for argument, c_type in zip(arguments, types):
                    self.assertIn(argument, expected(c_type), c_type)
                self.assertEqual(name in library.RESULTS, returns == "ncclsvc_result")

    def test_structs_have_the_compilers_sizes_and_offsets(self):
        lines, want = [], []
        for name, struct in structs.NAMES.items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            want.append(f"{name} {ctypes.sizeof(struct)}")
            for field, *_ in struct._fields_:
                lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                             f'sizeof((({name} *)0)->{field}));')
                descriptor = getattr(struct, field)
                want.append(f"{name}.{field} {descriptor.offset} {descriptor.size}")
        self.assertEqual(compiled(lines), want)
        in_headers = {name for h in HEADERS for name in re.findall(r"^typedef struct (\w+) \{", header(h), re.M)}
        self.assertEqual(in_headers, set(structs.NAMES))

    def test_numbers_are_those_of_the_headers(self):
        lines = ['#define P(name, value, ...) printf("%s %d\\n", #name, value);']
        lines += [f"{macro}(P)" for macro in LISTS]
        want = [f"{prefix}{item.name} {int(item)}" for prefix, kind in LISTS.values() for item in kind]
        for prefix, kind in (("NCCLSVC_GROUP_", enums.GroupType), ("NCCLSVC_SHAPES_", enums.Shapes)):
            lines += [f'printf("{item.name} %d\\n", {prefix}{item.name});' for item in kind]
            want += [f"{item.name} {int(item)}" for item in kind]
        for name in CONSTANTS:
            lines.append(f'printf("{name} %lld\\n", (long long)NCCLSVC_{name});')
            want.append(f"{name} {ctypes.c_longlong(getattr(enums, name)).value}")
        self.assertEqual(compiled(lines), want)
        self.assertEqual(len(enums.GroupType), enums.GROUP_TYPES)

    def test_names_and_sizes_are_the_librarys(self):
        for result in enums.Result:
            self.assertEqual(library.lib.result_name(result).decode(), result.name)
        for kind in enums.DataType:
            self.assertEqual(library.lib.type_size(kind), kind.itemsize)
            self.assertEqual(library.lib.type_name(kind).decode(), kind.name.lower())
        for kind in enums.GroupType:
            self.assertEqual(library.lib.group_type_name(kind).decode(), kind.name.lower())

    def test_every_failure_has_a_class(self):
        from ncclsvc import errors
        failures = {r for r in enums.Result if r < 0}
        self.assertEqual(set(errors.CLASSES), failures)

    def test_a_result_that_is_not_known(self):
        from ncclsvc import status, structs
        self.assertEqual(status.Status.of(structs.StatusRecord(result=-99)).result, -99)

    def test_integers_that_do_not_fit(self):
        import ncclsvc
        for call in (lambda: ncclsvc.aggregate([2**64]), lambda: ncclsvc.partition(5, 2**32 + 1),
                     lambda: ncclsvc.partition_tensors([1, 2**64 + 1], 1),
                     lambda: ncclsvc.layout_of(2**32, 2**32 + 1, 1, 1)):
            with self.assertRaisesRegex(ValueError, "is out of range"):
                call()

    def test_versions(self):
        import ncclsvc
        self.assertEqual(ncclsvc.__version__, ncclsvc.version())
        with open(os.environ["PYPROJECT"], encoding="utf-8") as file:
            self.assertIn(f'\nversion = "{ncclsvc.__version__}"\n', file.read())

    def test_a_missing_library_is_named(self):
        done = subprocess.run([sys.executable, "-c", "import ncclsvc"], stderr=subprocess.PIPE, text=True, check=False,
                              env=dict(os.environ, NCCLSVC_LIBRARY="/nowhere/libncclsvc.so.0"), timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot open /nowhere/libncclsvc.so.0", done.stderr)
        self.assertIn("set NCCLSVC_LIBRARY", done.stderr)


if __name__ == "__main__":
    if not __debug__:
        sys.exit("tests need their assertions: run without -O")
    unittest.main()
