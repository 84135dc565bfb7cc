// What a test tells the stand-in driver and asks of it; plain C, for ctypes.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Forgets devices, streams, failures, and the log.
void standin_reset(void);
// One more device; its number is how many there were. `arch` as in gcnArchName.
void standin_add_device(const char* arch, int multiprocessors);
// A stream of a device.
void* standin_stream(int device);

// Call number `skip` (0: the next) of a function from now on fails with `status` and `text`.
void standin_fail(const char* function, int skip, int status, const char* text);
// Whether a stream of this thread is being captured: then modules load in relaxed mode only.
void standin_capture(int capturing);

// Calls so far, each a JSON object; null past the last one. Valid until the next reset.
const char* standin_call(int i);
// hipGetLastError, without taking it.
int standin_last_error(void);

#ifdef __cplusplus
}
#endif
