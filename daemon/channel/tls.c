/* SPDX-License-Identifier: Apache-2.0 */
#include "tls.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEYS_MAX      8
#define KEY_BYTES     32 /* of the PSK, which is a hash of the site's key */
#define KEY_MIN	      32
#define KEY_FILE_MAX  4096
#define HANDSHAKE_MAX (64 << 10) /* bytes of a stranger */

#define PRIVATE "must be a file that others cannot read: chmod 600, or 640 if root owns it"

struct psk {
	uint8_t key[KEY_BYTES];
	char identity[40];
};

struct tls_site {
	SSL_CTX *context;
	struct psk keys[KEYS_MAX];
	unsigned nkeys; /* 0: certificates */
};

struct tls {
	SSL *ssl;
	BIO *in, *out; /* owned by ssl */
	size_t fed;    /* before it was ready */
	char why[160]; /* empty: it has not failed */
};

/* ---- Keys ---- */

static bool hash(const char *what, const void *bytes, size_t n, uint8_t out[32])
{
	EVP_MD_CTX *c = EVP_MD_CTX_new();
	const bool done = c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) &&
			  EVP_DigestUpdate(c, what, strlen(what)) &&
			  EVP_DigestUpdate(c, bytes, n) && EVP_DigestFinal_ex(c, out, NULL);
	EVP_MD_CTX_free(c);
	return done;
}

static int add_key(struct tls_site *s, const void *bytes, size_t n, char *why, size_t size)
{
	uint8_t name[32];
	if (s->nkeys == KEYS_MAX) {
		snprintf(why, size, "the key file has more than %d keys", KEYS_MAX);
		return -1;
	}
	struct psk *k = &s->keys[s->nkeys++];
	if (!hash("ncclsvc key", bytes, n, k->key) || !hash("ncclsvc name", bytes, n, name)) {
		snprintf(why, size, "OpenSSL cannot compute SHA-256");
		return -1;
	}
	snprintf(k->identity, sizeof(k->identity), "ncclsvc %02x%02x%02x%02x%02x%02x%02x%02x",
		 name[0], name[1], name[2], name[3], name[4], name[5], name[6], name[7]);
	return 0;
}

static bool is_empty(const char *text)
{
	return !text || !text[0];
}

/* Root's file may be readable by the daemon's group. */
static bool is_private(const struct stat *st)
{
	return S_ISREG(st->st_mode) && !(st->st_mode & 037) &&
	       (!(st->st_mode & 040) || st->st_uid == 0);
}

static ssize_t read_private(const char *path, char *text, char *why, size_t size)
{
	struct stat st;
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	ssize_t n = fd < 0 || fstat(fd, &st) ? -1 : read(fd, text, KEY_FILE_MAX);
	if (n < 0)
		snprintf(why, size, "cannot read %s: %s", path, strerror(errno));
	else if (!is_private(&st))
		snprintf(why, size, "%s " PRIVATE, path);
	else if (n == KEY_FILE_MAX)
		snprintf(why, size, "%s is longer than %d bytes", path, KEY_FILE_MAX - 1);
	if (n >= 0 && (!is_private(&st) || n == KEY_FILE_MAX))
		n = -1;
	if (fd >= 0)
		close(fd);
	return n;
}

static int add_lines(struct tls_site *s, const char *path, const char *text, size_t n, char *why,
		     size_t size)
{
	for (size_t at = 0; at < n;) {
		const char *end = memchr(text + at, '\n', n - at);
		const size_t line = end ? (size_t)(end - (text + at)) : n - at;
		size_t length = line;
		while (length && strchr(" \t\r", text[at + length - 1]))
			length--;
		if (length && length < KEY_MIN) {
			snprintf(why, size,
				 "%s: a key must have at least %d bytes: make one with 'openssl "
				 "rand -hex 32'",
				 path, KEY_MIN);
			return -1;
		}
		if (length && add_key(s, text + at, length, why, size))
			return -1;
		at += line + 1;
	}
	if (!s->nkeys)
		snprintf(why, size, "%s has no key: make one with 'openssl rand -hex 32'", path);
	return s->nkeys ? 0 : -1;
}

static int add_key_file(struct tls_site *s, const char *path, char *why, size_t size)
{
	char text[KEY_FILE_MAX];
	const ssize_t n = read_private(path, text, why, size);
	const int error = n < 0 ? -1 : add_lines(s, path, text, (size_t)n, why, size);
	OPENSSL_cleanse(text, sizeof(text));
	return error;
}

static SSL_SESSION *session_of(SSL *ssl, const struct psk *k)
{
	static const uint8_t cipher[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */
	SSL_SESSION *session = SSL_SESSION_new();
	if (session && SSL_SESSION_set1_master_key(session, k->key, sizeof(k->key)) &&
	    SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, cipher)) &&
	    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
		return session;
	SSL_SESSION_free(session);
	return NULL;
}

static int offer_key(SSL *ssl, const EVP_MD *digest, const unsigned char **identity,
		     size_t *identity_bytes, SSL_SESSION **session)
{
	const struct tls_site *s = SSL_get_app_data(ssl);
	(void)digest;
	if (!s->nkeys)
		return 0; /* reloaded with certificates meanwhile */
	*session = session_of(ssl, &s->keys[0]);
	*identity = (const unsigned char *)s->keys[0].identity;
	*identity_bytes = strlen(s->keys[0].identity);
	return *session != NULL;
}

static int find_key(SSL *ssl, const unsigned char *identity, size_t n, SSL_SESSION **session)
{
	const struct tls_site *s = SSL_get_app_data(ssl);
	*session = NULL;
	for (unsigned i = 0; i < s->nkeys && !*session; i++)
		if (n == strlen(s->keys[i].identity) && !memcmp(identity, s->keys[i].identity, n))
			*session = session_of(ssl, &s->keys[i]);
	return 1; /* without a session, the handshake fails for lack of a certificate */
}

/* ---- The site ---- */

static int openssl_error(char *why, size_t size, const char *what)
{
	char text[256];
	ERR_error_string_n(ERR_get_error(), text, sizeof(text));
	snprintf(why, size, "%s: %s", what, text);
	ERR_clear_error();
	return -1;
}

static int use_certificates(struct tls_site *s, const struct tls_config *c, char *why, size_t size)
{
	if (is_empty(c->certificate) || is_empty(c->private_key) || is_empty(c->ca)) {
		snprintf(why, size,
			 "cluster_certificate, cluster_private_key and cluster_ca belong together");
		return -1;
	}
	struct stat st;
	if (!stat(c->private_key, &st) && !is_private(&st)) {
		snprintf(why, size, "%s " PRIVATE, c->private_key);
		return -1;
	}
	if (SSL_CTX_use_certificate_chain_file(s->context, c->certificate) != 1)
		return openssl_error(why, size, c->certificate);
	if (SSL_CTX_use_PrivateKey_file(s->context, c->private_key, SSL_FILETYPE_PEM) != 1 ||
	    SSL_CTX_check_private_key(s->context) != 1)
		return openssl_error(why, size, c->private_key);
	if (SSL_CTX_load_verify_file(s->context, c->ca) != 1)
		return openssl_error(why, size, c->ca);
	SSL_CTX_set_verify(s->context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	return 0;
}

static int use_keys(struct tls_site *s, const struct tls_config *c, char *why, size_t size)
{
	if (!is_empty(c->certificate)) {
		snprintf(why, size, "set cluster_key_file or cluster_certificate, not both");
		return -1;
	}
	SSL_CTX_set_psk_use_session_callback(s->context, offer_key);
	SSL_CTX_set_psk_find_session_callback(s->context, find_key);
	if (c->key)
		return add_key(s, c->key, c->key_bytes, why, size);
	return add_key_file(s, c->key_file, why, size);
}

static int fill(struct tls_site *s, const struct tls_config *c, char *why, size_t size)
{
	const bool keys = c->key || !is_empty(c->key_file);
	s->context = SSL_CTX_new(TLS_method());
	if (!s->context || SSL_CTX_set_min_proto_version(s->context, TLS1_3_VERSION) != 1 ||
	    SSL_CTX_set_ciphersuites(s->context, "TLS_AES_128_GCM_SHA256") != 1)
		return openssl_error(why, size, "OpenSSL");
	SSL_CTX_set_options(s->context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
	SSL_CTX_set_num_tickets(s->context, 0);
	SSL_CTX_set_session_cache_mode(s->context, SSL_SESS_CACHE_OFF);
	return keys ? use_keys(s, c, why, size) : use_certificates(s, c, why, size);
}

static void empty(struct tls_site *s)
{
	SSL_CTX_free(s->context);
	OPENSSL_cleanse(s, sizeof(*s));
}

struct tls_site *tls_site_create(const struct tls_config *c, char *why, size_t size)
{
	struct tls_site *s = calloc(1, sizeof(*s));
	if (!s)
		snprintf(why, size, "out of memory");
	if (s && fill(s, c, why, size)) {
		tls_site_free(s);
		s = NULL;
	}
	return s;
}

int tls_site_reload(struct tls_site *s, const struct tls_config *c, char *why, size_t size)
{
	struct tls_site fresh = {0};
	if (fill(&fresh, c, why, size)) {
		empty(&fresh);
		return -1;
	}
	empty(s);
	*s = fresh;
	return 0;
}

void tls_site_free(struct tls_site *s)
{
	if (s)
		empty(s);
	free(s);
}

/* ---- A connection ---- */

static int note_failure(struct tls *t, const char *what)
{
	const unsigned long code = ERR_peek_error();
	const char *reason = code ? ERR_reason_error_string(code) : NULL;
	if (!t->why[0])
		snprintf(t->why, sizeof(t->why), "%s%s%s", what, reason ? ": " : "",
			 reason ? reason : "");
	ERR_clear_error();
	return -1;
}

/* Goes on with the handshake as far as the bytes fed allow. */
static int shake_hands(struct tls *t)
{
	if (SSL_is_init_finished(t->ssl))
		return 0;
	const int r = SSL_do_handshake(t->ssl);
	if (r == 1 || SSL_get_error(t->ssl, r) == SSL_ERROR_WANT_READ)
		return 0;
	return note_failure(t, "the nodes do not accept each other's key or certificate");
}

struct tls *tls_new(struct tls_site *s, bool server)
{
	struct tls *t = calloc(1, sizeof(*t));
	if (!t || !(t->ssl = SSL_new(s->context)) || !(t->in = BIO_new(BIO_s_mem())) ||
	    !(t->out = BIO_new(BIO_s_mem()))) {
		if (t)
			BIO_free(t->in);
		if (t)
			SSL_free(t->ssl);
		free(t);
		return NULL;
	}
	SSL_set_bio(t->ssl, t->in, t->out);
	SSL_set_app_data(t->ssl, s);
	if (server)
		SSL_set_accept_state(t->ssl);
	else
		SSL_set_connect_state(t->ssl);
	/* A server that does not know the key must not get by with a certificate. */
	if (!server && s->nkeys)
		SSL_set_verify(t->ssl, SSL_VERIFY_PEER, NULL);
	shake_hands(t); /* the side that connects begins */
	return t;
}

void tls_free(struct tls *t)
{
	if (t)
		SSL_free(t->ssl);
	free(t);
}

int tls_feed(struct tls *t, const void *bytes, size_t n)
{
	size_t done = 0;
	if (t->why[0])
		return -1;
	if (!SSL_is_init_finished(t->ssl) && (t->fed += n) > HANDSHAKE_MAX)
		return note_failure(t, "it does not identify itself");
	if (!BIO_write_ex(t->in, bytes, n, &done) || done != n)
		return note_failure(t, "out of memory");
	return shake_hands(t);
}

long tls_read(struct tls *t, void *to, size_t size)
{
	size_t n = 0;
	if (t->why[0])
		return -1;
	if (!size || !SSL_is_init_finished(t->ssl) || SSL_read_ex(t->ssl, to, size, &n))
		return (long)n;
	const int error = SSL_get_error(t->ssl, 0);
	if (error == SSL_ERROR_WANT_READ)
		return 0;
	return note_failure(t, error == SSL_ERROR_ZERO_RETURN ? "its connection ended"
							      : "it breaks TLS");
}

int tls_write(struct tls *t, const void *bytes, size_t n)
{
	size_t done = 0;
	if (t->why[0])
		return -1;
	if (!SSL_is_init_finished(t->ssl))
		return note_failure(t, "it is not ready");
	if (n && (!SSL_write_ex(t->ssl, bytes, n, &done) || done != n))
		return note_failure(t, "it cannot encrypt");
	return 0;
}

size_t tls_take(struct tls *t, void *to, size_t size)
{
	size_t n = 0;
	return BIO_read_ex(t->out, to, size, &n) ? n : 0;
}

bool tls_is_ready(const struct tls *t)
{
	return SSL_is_init_finished(t->ssl) && !t->why[0];
}

bool tls_ended(const struct tls *t)
{
	return SSL_get_shutdown(t->ssl) & SSL_RECEIVED_SHUTDOWN;
}

const char *tls_failure(const struct tls *t)
{
	return t->why[0] ? t->why : "no failure";
}
