/* SPDX-License-Identifier: Apache-2.0
 * Default paths of the daemon's socket and configuration. */
#ifndef DAEMON_PATHS_H
#define DAEMON_PATHS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The value of an environment variable, or NULL if it is unset or empty. */
const char *paths_env(char *const envp[], const char *name);

/* $RUNTIME_DIRECTORY/ncclsvcd.sock as a systemd service, /run/ncclsvc/ncclsvcd.sock for root,
 * $XDG_RUNTIME_DIR/ncclsvc/ncclsvcd.sock for a user. Returns 0, or -1 with advice in why. */
int paths_default_socket(char *buf, size_t size, uid_t uid, char *const envp[], char *why,
			 size_t why_size);

/* $CONFIGURATION_DIRECTORY/ncclsvcd.conf as a systemd service, SYSCONFDIR/ncclsvc/ncclsvcd.conf for
 * root, $XDG_CONFIG_HOME/ncclsvc/ncclsvcd.conf (~/.config) for a user. Returns 0, or -1 if the
 * environment does not define it. */
int paths_default_config(char *buf, size_t size, uid_t uid, char *const envp[]);

/* Is the path absolute, and short enough for sun_path? Returns 0, or -1 with the reason in why. */
int paths_check_socket(const char *path, char *why, size_t why_size);

/* Creates the directory of a socket if it is missing (its parent must exist). Returns 0 or -errno.
 */
int paths_make_socket_dir(const char *socket, mode_t mode);

/* Could another unprivileged user replace the socket, or have taken its name first? */
bool paths_socket_dir_shared(const char *socket);

#endif
