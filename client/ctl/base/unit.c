/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#ifdef HAVE_SYSTEMD
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-bus.h>

#define MANAGER	       "org.freedesktop.systemd1"
#define UNIT_INTERFACE MANAGER ".Unit"
#define UNITS	       "/org/freedesktop/systemd1/unit/"
#define SOCKET_UNIT    UNITS "ncclsvcd_2esocket"
#define SERVICE_UNIT   UNITS "ncclsvcd_2eservice"

/* Compares files: a socket can have several links, and its directory several names. */
static bool is_same(const char *path, const struct stat *socket)
{
	struct stat st;
	return !stat(path, &st) && st.st_dev == socket->st_dev && st.st_ino == socket->st_ino;
}

static bool listens_at(sd_bus *bus, const struct stat *socket)
{
	sd_bus_message *reply = NULL;
	const char *type, *path;
	bool found = false;
	if (sd_bus_get_property(bus, MANAGER, SOCKET_UNIT, MANAGER ".Socket", "Listen", NULL,
				&reply, "a(ss)") >= 0 &&
	    sd_bus_message_enter_container(reply, 'a', "(ss)") > 0)
		while (!found && sd_bus_message_read(reply, "(ss)", &type, &path) > 0)
			found = is_same(path, socket);
	sd_bus_message_unref(reply);
	return found;
}

/* An empty text: unknown. */
static void active_state(sd_bus *bus, const char *unit, char *state, size_t size)
{
	char *value = NULL;
	state[0] = '\0';
	if (sd_bus_get_property_string(bus, MANAGER, unit, UNIT_INTERFACE, "ActiveState", NULL,
				       &value) >= 0)
		snprintf(state, size, "%s", value);
	free(value);
}

/* The state of this manager's service if a connection would start it; NULL: it would not. */
static const char *would_start(sd_bus *bus, const struct stat *socket)
{
	char unit[32], service[32];
	if (!listens_at(bus, socket))
		return NULL;
	active_state(bus, SOCKET_UNIT, unit, sizeof(unit));
	active_state(bus, SERVICE_UNIT, service, sizeof(service));
	if (strcmp(unit, "active") != 0)
		return NULL; /* another daemon may listen */
	return !strcmp(service, "inactive")	  ? "is stopped"
	       : !strcmp(service, "failed")	  ? "has failed"
	       : !strcmp(service, "deactivating") ? "is being stopped"
						  : NULL;
}

static bool ask(int (*connect)(sd_bus **bus), const char *option, const struct stat *socket,
		uint64_t timeout_ns, char *text, size_t size)
{
	sd_bus *bus = NULL;
	const char *state = NULL;
	if (connect(&bus) >= 0) {
		sd_bus_set_method_call_timeout(bus, timeout_ns / 1000);
		state = would_start(bus, socket);
	}
	sd_bus_close_unref(bus);
	if (state)
		snprintf(text, size, "the service %s (`systemctl %sstart ncclsvcd` starts it)",
			 state, option);
	return state != NULL;
}

bool unit_is_stopped(const char *socket, uint64_t timeout_ns, char *text, size_t size)
{
	struct stat st;
	if (stat(socket, &st))
		return false;
	return ask(sd_bus_open_system, "", &st, timeout_ns, text, size) ||
	       ask(sd_bus_open_user, "--user ", &st, timeout_ns, text, size);
}

#else

bool unit_is_stopped(const char *socket, uint64_t timeout_ns, char *text, size_t size)
{
	(void)socket;
	(void)timeout_ns;
	(void)text;
	(void)size;
	return false;
}

#endif
