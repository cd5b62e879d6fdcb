/* SPDX-License-Identifier: Apache-2.0
 * Python's own signal handler only sets a flag and wakes no thread, so Ctrl-C would have to wait
 * until all ranks have joined. A wait in Python's main thread therefore polls this flag. Other
 * programs' handlers run at once and need no help. */
#include "interrupt.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <unistd.h>

/* Functions of Python's stable ABI; NULL outside Python. */
static struct {
	int (*Py_IsInitialized)(void);
	int (*PyGILState_Ensure)(void);
	void (*PyGILState_Release)(int);
	int (*PyOS_InterruptOccurred)(void);
	void (*PyErr_SetInterrupt)(void);
} python;

static bool find_python(void)
{
#define FIND(function) (*(void **)&python.function = dlsym(RTLD_DEFAULT, #function))
	return FIND(Py_IsInitialized) && FIND(PyGILState_Ensure) && FIND(PyGILState_Release) &&
	       FIND(PyOS_InterruptOccurred) && FIND(PyErr_SetInterrupt);
#undef FIND
}

bool interrupt_is_python(void)
{
	return getpid() == gettid() && find_python() && python.Py_IsInitialized();
}

/* Reading the flag clears it, so it is set again for the interpreter. */
bool interrupt_is_noted(void)
{
	const int state = python.PyGILState_Ensure();
	const bool noted = python.PyOS_InterruptOccurred();
	if (noted)
		python.PyErr_SetInterrupt();
	python.PyGILState_Release(state);
	return noted;
}

bool interrupt_wait(int eventfd)
{
	struct pollfd p = {.fd = eventfd, .events = POLLIN};
	/* A signal may arrive just before poll, or in another thread. */
	while (poll(&p, 1, INTERRUPT_LOOK_MS) <= 0)
		if (interrupt_is_noted())
			return false;
	return true;
}
