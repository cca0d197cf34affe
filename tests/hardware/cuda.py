"""Runs in the container: one round of CUDA's driver API by ctypes, then waits for the end of its input.

It needs nothing but Python and the libcuda.so.1 that the claim's CDI edits bring. Each line that it prints is a word
and what came of it. ``--without-cuda`` only waits, where there is no device behind the driver.
"""

import ctypes
import os
import sys

SIZE = 1 << 20


def say(word: str, what: object) -> None:
    sys.stdout.write(f"{word} {what}\n")
    sys.stdout.flush()


class Cuda:
    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")


def round_trip(cuda: Cuda) -> None:
    count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    cuda.call("cuInit", 0)
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    say("devices", count.value)
    cuda.call("cuDeviceGet", ctypes.byref(device), 0)
    uuid = ctypes.create_string_buffer(16)
    cuda.call("cuDeviceGetUuid", uuid, device)
    digits = uuid.raw.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    say("uuid", f"GPU-{'-'.join(parts)}")
    cuda.call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    memory, sent, back = ctypes.c_uint64(), os.urandom(SIZE), ctypes.create_string_buffer(SIZE)
    cuda.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(SIZE))
    cuda.call("cuMemcpyHtoD_v2", memory, sent, ctypes.c_size_t(SIZE))
    cuda.call("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(SIZE))
    say("copied", SIZE if back.raw == sent else "something else came back")


if __name__ == "__main__":
    if "--without-cuda" not in sys.argv:
        try:
            round_trip(Cuda())
        except (OSError, RuntimeError, AttributeError) as error:
            say("error", error)
            sys.exit(1)
    say("waiting", os.getpid())
    sys.stdin.read()
