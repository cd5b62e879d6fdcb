/* SPDX-License-Identifier: Apache-2.0 */
#include "mps.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ncclsvc_types.h"

/* The control daemon's socket file outlives it, so its existence says little. The kernel knows
 * whether a process holds it, and checks that before the socket's type. So this connects with a
 * wrong type, which the control daemon does not notice. */
static enum mps_state ask(const struct sockaddr_un *address)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return MPS_REFUSED;
	int error = connect(fd, (const struct sockaddr *)address, sizeof(*address)) ? errno : 0;
	close(fd);
	switch (error) {
	case 0:
	case EPROTOTYPE:
		return MPS_RUNNING;
	case EACCES:
	case EPERM:
		return MPS_REFUSED;
	}
	return MPS_STALE;
}

static const char *value(const char *variable)
{
	const char *text = getenv(variable);
	return text && *text ? text : NULL;
}

static bool is_led(void)
{
	const char *set = value(MPS_VARIABLE), *led = value(MPS_LED_VARIABLE);
	return set && led && !strcmp(set, led);
}

const char *mps_chosen(void)
{
	return is_led() ? NULL : value(MPS_VARIABLE);
}

void mps_lead(const char *directory)
{
	setenv(MPS_LED_VARIABLE, directory, 1);
	setenv(MPS_VARIABLE, directory, 1);
}

void mps_leave(void)
{
	if (is_led())
		unsetenv(MPS_VARIABLE);
	unsetenv(MPS_LED_VARIABLE);
}

void mps_look(struct mps *m)
{
	const char *directory = value(MPS_VARIABLE);
	mps_look_at(m, directory ? directory : MPS_DEFAULT_DIRECTORY);
}

void mps_look_at(struct mps *m, const char *directory)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct stat st;
	*m = (struct mps){.state = MPS_ABSENT};
	snprintf(m->directory, sizeof(m->directory), "%s", directory);
	int n = snprintf(address.sun_path, sizeof(address.sun_path), "%s/control", directory);
	if (n < 0 || (size_t)n >= sizeof(address.sun_path))
		return;
	if (stat(address.sun_path, &st)) {
		if (errno == EACCES)
			m->state = MPS_REFUSED;
		return;
	}
	m->state = ask(&address);
	m->uid = st.st_uid;
	/* An inode alone is not unique: every in-memory file system assigns small numbers again. */
	if (m->state != MPS_STALE)
		m->server = (uint64_t)st.st_dev << 40 ^ (uint64_t)st.st_ino;
}

uint32_t mps_in_use(int error, int enabled, uint64_t *server)
{
	struct mps m;
	mps_look(&m);
	const bool active = error ? m.state == MPS_RUNNING : enabled != 0;
	*server = active ? m.server : 0;
	return active ? NCCLSVC_MPS_ACTIVE : NCCLSVC_MPS_NONE;
}
