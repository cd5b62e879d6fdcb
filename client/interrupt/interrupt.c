/* SPDX-License-Identifier: Apache-2.0
 *
 * Python's own handler of a signal only leaves a note, and wakes nobody: what the program does with
 * Ctrl-C would wait until all ranks have joined. So whoever waits in Python's main thread asks for
 * that note. The handlers of other programs run at once, and they know what to do. */
#include "interrupt.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <unistd.h>

/* Functions of Python's stable ABI; NULL where there is no Python. */
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

/* To ask is to take the note away. It is put back: the interpreter acts on it. */
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
	/* A signal may come just before poll, or in another thread. */
	while (poll(&p, 1, INTERRUPT_LOOK_MS) <= 0)
		if (interrupt_is_noted())
			return false;
	return true;
}
