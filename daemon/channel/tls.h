/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS 1.3 between daemons: bytes in, bytes out, without sockets. A site has either a key that all
 * its daemons know (an external PSK, with a Diffie-Hellman exchange, so that recorded traffic stays
 * secret if the key becomes known later), or certificates of its own authority; then both sides
 * present one. Neither side accepts anything else.
 *
 * Not thread-safe; nothing blocks. */
#ifndef CHANNEL_TLS_H
#define CHANNEL_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tls_site;
struct tls;

/* One of the three: key_file, key, or the last three; the others are NULL or empty. */
struct tls_config {
	/* Each line that is not empty is a key of at least 32 bytes. The first is used for
	 * connections that this node opens; all are accepted. So a site can change its key without
	 * an outage: add the new one as the second everywhere, then make it the first, then drop
	 * the old one. The file must not be readable by everybody. */
	const char *key_file;
	const uint8_t *key;
	size_t key_bytes;
	const char *certificate, *private_key, *ca; /* PEM files */
};

/* Returns NULL, with a sentence in why. */
struct tls_site *tls_site_create(const struct tls_config *config, char *why, size_t size);
/* For connections from now on. Returns 0, or -1 with a sentence in why; then nothing has changed.
 */
int tls_site_reload(struct tls_site *site, const struct tls_config *config, char *why, size_t size);
void tls_site_free(struct tls_site *site);

/* A connection; server: the other side has opened it. NULL: no memory. */
struct tls *tls_new(struct tls_site *site, bool server);
void tls_free(struct tls *t);
/* Takes all these bytes from the network. Returns 0, or -1: see tls_failure. */
int tls_feed(struct tls *t, const void *bytes, size_t n);
/* Returns how many bytes were decrypted into `to`; 0: none yet; -1: it has failed, or ended. */
long tls_read(struct tls *t, void *to, size_t size);
/* Encrypts all bytes; only once it is ready. Returns 0 or -1. */
int tls_write(struct tls *t, const void *bytes, size_t n);
/* Takes bytes for the network. Returns how many; 0: there are none now. */
size_t tls_take(struct tls *t, void *to, size_t size);
/* Have both sides proved what they must? */
bool tls_is_ready(const struct tls *t);
/* Has the other side ended it in order? */
bool tls_ended(const struct tls *t);
/* Why it has failed, until the next call; not NULL. */
const char *tls_failure(const struct tls *t);

#endif
