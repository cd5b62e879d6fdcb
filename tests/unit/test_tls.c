/* SPDX-License-Identifier: Apache-2.0
 * TLS between daemons, without a network. */
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "channel/tls.h"

#define KEY_A "the first key of this site, in at least 32 bytes"
#define KEY_B "the second key of this site, in at least 32 bytes"

static char folder[] = "/tmp/ncclsvc-test-XXXXXX", why[256];

static const char *path_of(const char *name)
{
	static char paths[8][64];
	static unsigned n;
	char *path = paths[n++ % 8];
	snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
	return path;
}

static const char *write_file(const char *name, const char *text, mode_t mode)
{
	const char *path = path_of(name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
	assert_int_equal(chmod(path, mode), 0);
	return path;
}

static struct tls_site *site_with(const char *keys)
{
	const struct tls_config c = {.key_file = write_file("key", keys, 0600)};
	struct tls_site *s = tls_site_create(&c, why, sizeof(why));
	if (!s)
		print_message("%s\n", why);
	assert_non_null(s);
	return s;
}

static void is_refused(const struct tls_config *c, const char *text)
{
	assert_null(tls_site_create(c, why, sizeof(why)));
	if (!strstr(why, text))
		fail_msg("\"%s\" is not in: %s", text, why);
}

/* Carries all bytes from one side to the other, `step` at a time. False: nothing was there. */
static bool carry(struct tls *from, struct tls *to, size_t step)
{
	char bytes[4096];
	size_t n;
	bool any = false;
	while ((n = tls_take(from, bytes, step < sizeof(bytes) ? step : sizeof(bytes)))) {
		any = true;
		if (tls_feed(to, bytes, n))
			break;
	}
	return any;
}

struct pair {
	struct tls *client, *server;
};

static struct pair connect_sites(struct tls_site *a, struct tls_site *b, size_t step)
{
	struct pair p = {tls_new(a, false), tls_new(b, true)};
	assert_non_null(p.client);
	assert_non_null(p.server);
	for (bool any = true; any;) {
		any = carry(p.client, p.server, step);
		any |= carry(p.server, p.client, step);
	}
	return p;
}

static void end(struct pair *p)
{
	tls_free(p->client);
	tls_free(p->server);
}

/* Sends so many bytes, and compares them on the other side. */
static void send_over(struct tls *from, struct tls *to, size_t size)
{
	char *sent = malloc(size), *got = malloc(size);
	size_t at = 0;
	long n;
	assert_non_null(sent);
	assert_non_null(got);
	for (size_t i = 0; i < size; i++)
		sent[i] = (char)(i * 7);
	assert_int_equal(tls_write(from, sent, size), 0);
	carry(from, to, 4096);
	while (at < size && (n = tls_read(to, got + at, size - at)) > 0)
		at += (size_t)n;
	assert_int_equal(at, size);
	assert_memory_equal(sent, got, size);
	assert_int_equal(tls_read(to, got, 1), 0);
	free(sent);
	free(got);
}

static void work(struct tls_site *a, struct tls_site *b, size_t step)
{
	struct pair p = connect_sites(a, b, step);
	assert_true(tls_is_ready(p.client));
	assert_true(tls_is_ready(p.server));
	send_over(p.client, p.server, 1 << 20);
	send_over(p.server, p.client, 1 << 20);
	end(&p);
}

/* Neither side becomes ready with the other. */
static void do_not_work(struct tls_site *a, struct tls_site *b)
{
	struct pair p = connect_sites(a, b, 4096);
	char byte;
	assert_false(tls_is_ready(p.server));
	assert_true(tls_read(p.server, &byte, 1) <= 0);
	assert_int_equal(tls_write(p.server, "x", 1), -1);
	end(&p);
}

/* ---- Keys ---- */

static void daemons_with_one_key_work(void **state)
{
	(void)state;
	struct tls_site *a = site_with(KEY_A " \r\n"), *b = site_with("\n" KEY_A);
	work(a, b, 4096);
	work(b, a, 1);
	tls_site_free(a);
	tls_site_free(b);
}

static void another_key_is_refused(void **state)
{
	(void)state;
	struct tls_site *a = site_with(KEY_A), *b = site_with(KEY_B);
	do_not_work(a, b);
	tls_site_free(a);
	tls_site_free(b);
}

static void all_keys_of_a_file_are_accepted(void **state)
{
	(void)state;
	struct tls_site *old = site_with(KEY_A), *both = site_with(KEY_A "\n" KEY_B "\n"),
			*last = site_with(KEY_B "\n" KEY_A "\n"), *fresh = site_with(KEY_B "\n");
	work(old, both, 4096);
	work(both, old, 4096);
	work(both, last, 4096);
	work(last, both, 4096);
	work(last, fresh, 4096);
	work(fresh, last, 4096);
	do_not_work(old, fresh);
	tls_site_free(old);
	tls_site_free(both);
	tls_site_free(last);
	tls_site_free(fresh);
}

static void a_failed_reload_changes_nothing(void **state)
{
	(void)state;
	struct tls_site *a = site_with(KEY_A), *b = site_with(KEY_A);
	struct pair before = connect_sites(a, b, 4096);
	const struct tls_config bad = {.key_file = write_file("key", "short\n", 0600)};
	assert_int_equal(tls_site_reload(a, &bad, why, sizeof(why)), -1);
	work(a, b, 4096);
	const struct tls_config good = {.key_file = write_file("key", KEY_B "\n", 0600)};
	assert_int_equal(tls_site_reload(a, &good, why, sizeof(why)), 0);
	do_not_work(a, b);
	send_over(before.client, before.server, 1000); /* it goes on */
	assert_int_equal(tls_site_reload(b, &good, why, sizeof(why)), 0);
	work(a, b, 4096);
	end(&before);
	tls_site_free(a);
	tls_site_free(b);
}

static void bad_key_files_are_refused(void **state)
{
	(void)state;
	char keys[9 * sizeof(KEY_A) + 1] = "";
	is_refused(&(struct tls_config){.key_file = path_of("none")}, "cannot read");
	is_refused(&(struct tls_config){.key_file = write_file("key", KEY_A, 0644)}, "chmod 600");
	is_refused(&(struct tls_config){.key_file = write_file("key", "", 0600)}, "has no key");
	is_refused(&(struct tls_config){.key_file = write_file("key", "short", 0600)},
		   "at least 32 bytes");
	for (int i = 0; i < 9; i++)
		strcat(keys, KEY_A "\n");
	is_refused(&(struct tls_config){.key_file = write_file("key", keys, 0600)},
		   "more than 8 keys");
	assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
	is_refused(&(struct tls_config){.key_file = path_of("fifo")}, "others cannot read");
	is_refused(&(struct tls_config){.key_file = write_file("key", KEY_A, 0600),
					.certificate = "/dev/null"},
		   "not both");
}

/* ---- Strangers ---- */

static void garbage_is_refused(void **state)
{
	(void)state;
	struct tls_site *s = site_with(KEY_A);
	struct tls *t = tls_new(s, true);
	assert_int_equal(tls_feed(t, "GET / HTTP/1.0\r\n\r\n", 18), -1);
	assert_int_equal(tls_feed(t, "x", 1), -1);
	assert_false(tls_is_ready(t));
	tls_free(t);
	tls_site_free(s);
}

/* This node keeps only so many bytes of a stranger. */
static void endless_handshakes_are_refused(void **state)
{
	(void)state;
	static const uint8_t record[] = {0x16, 3, 1, 0x40, 0}; /* of 16 KiB, which never ends */
	static const char zeros[16000];
	struct tls_site *s = site_with(KEY_A);
	struct tls *t = tls_new(s, true);
	int n = 0;
	assert_int_equal(tls_feed(t, record, sizeof(record)), 0);
	while (n < 10 && !tls_feed(t, zeros, sizeof(zeros)))
		n++;
	assert_true(n < 10);
	tls_free(t);
	tls_site_free(s);
}

static void a_truncated_handshake_is_not_ready(void **state)
{
	(void)state;
	struct tls_site *s = site_with(KEY_A);
	struct tls *a = tls_new(s, false), *b = tls_new(s, true);
	char bytes[4096], byte;
	const size_t n = tls_take(a, bytes, sizeof(bytes));
	assert_true(n > 1);
	assert_int_equal(tls_feed(b, bytes, n - 1), 0);
	assert_false(tls_is_ready(b));
	assert_int_equal(tls_read(b, &byte, 1), 0);
	tls_free(a);
	tls_free(b);
	tls_site_free(s);
}

/* ---- Certificates ---- */

struct signer {
	EVP_PKEY *key;
	X509 *certificate;
};

static void write_pem(const char *path, const X509 *certificate, const EVP_PKEY *key)
{
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	if (certificate)
		assert_int_equal(PEM_write_X509(f, (X509 *)(uintptr_t)certificate), 1);
	if (key)
		assert_int_equal(PEM_write_PrivateKey(f, (EVP_PKEY *)(uintptr_t)key, NULL, NULL, 0,
						      NULL, NULL),
				 1);
	fclose(f);
	assert_int_equal(chmod(path, 0600), 0);
}

/* by: NULL signs itself. It is valid for so many seconds. */
static struct signer make(const char *name, const struct signer *by, long seconds)
{
	struct signer s = {EVP_EC_gen("P-256"), X509_new()};
	assert_non_null(s.key);
	X509_set_version(s.certificate, 2);
	ASN1_INTEGER_set(X509_get_serialNumber(s.certificate), 1);
	X509_gmtime_adj(X509_getm_notBefore(s.certificate), -3600);
	X509_gmtime_adj(X509_getm_notAfter(s.certificate), seconds);
	X509_set_pubkey(s.certificate, s.key);
	X509_NAME_add_entry_by_txt(X509_get_subject_name(s.certificate), "CN", MBSTRING_ASC,
				   (const unsigned char *)name, -1, -1, 0);
	X509_set_issuer_name(s.certificate,
			     X509_get_subject_name(by ? by->certificate : s.certificate));
	X509_EXTENSION *ca =
		X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints, by ? "CA:FALSE" : "CA:TRUE");
	X509_add_ext(s.certificate, ca, -1);
	X509_EXTENSION_free(ca);
	assert_true(X509_sign(s.certificate, by ? by->key : s.key, EVP_sha256()) > 0);
	return s;
}

static void drop(struct signer *s)
{
	EVP_PKEY_free(s->key);
	X509_free(s->certificate);
}

static struct tls_site *site_of(const struct signer *node, const struct signer *ca)
{
	const struct tls_config c = {.certificate = path_of("node.pem"),
				     .private_key = path_of("node.key"),
				     .ca = path_of("ca.pem")};
	write_pem(c.certificate, node->certificate, NULL);
	write_pem(c.private_key, NULL, node->key);
	write_pem(c.ca, ca->certificate, NULL);
	struct tls_site *s = tls_site_create(&c, why, sizeof(why));
	if (!s)
		print_message("%s\n", why);
	assert_non_null(s);
	return s;
}

static void certificates_of_one_authority_work(void **state)
{
	(void)state;
	struct signer ca = make("ca", NULL, 3600), other_ca = make("other", NULL, 3600);
	struct signer one = make("one", &ca, 3600), two = make("two", &ca, 3600),
		      stranger = make("stranger", &other_ca, 3600), late = make("late", &ca, -60);
	struct tls_site *a = site_of(&one, &ca), *b = site_of(&two, &ca),
			*c = site_of(&stranger, &ca), *d = site_of(&late, &ca),
			*e = site_of(&stranger, &other_ca), *k = site_with(KEY_A);
	work(a, b, 4096);
	work(b, a, 1);
	do_not_work(c, a);
	do_not_work(d, a);
	do_not_work(e, a);
	do_not_work(k, a);
	do_not_work(a, k);
	tls_site_free(a);
	tls_site_free(b);
	tls_site_free(c);
	tls_site_free(d);
	tls_site_free(e);
	tls_site_free(k);
	drop(&ca);
	drop(&other_ca);
	drop(&one);
	drop(&two);
	drop(&stranger);
	drop(&late);
}

/* A server that does not know the key, and presents a certificate to whoever comes. */
static void an_impostor_is_refused(void **state)
{
	(void)state;
	struct signer self = make("impostor", NULL, 3600);
	struct tls_site *s = site_with(KEY_A);
	struct tls *t = tls_new(s, false);
	SSL_CTX *context = SSL_CTX_new(TLS_server_method());
	assert_int_equal(SSL_CTX_use_certificate(context, self.certificate), 1);
	assert_int_equal(SSL_CTX_use_PrivateKey(context, self.key), 1);
	SSL *server = SSL_new(context);
	BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
	SSL_set_bio(server, in, out);
	char bytes[4096];
	for (int i = 0; i < 4; i++) {
		size_t n;
		while ((n = tls_take(t, bytes, sizeof(bytes))))
			BIO_write(in, bytes, (int)n);
		SSL_accept(server);
		for (int k; (k = BIO_read(out, bytes, sizeof(bytes))) > 0;)
			tls_feed(t, bytes, (size_t)k);
	}
	assert_false(tls_is_ready(t));
	assert_int_equal(tls_write(t, "x", 1), -1);
	SSL_free(server);
	SSL_CTX_free(context);
	tls_free(t);
	tls_site_free(s);
	drop(&self);
}

static void incomplete_certificates_are_refused(void **state)
{
	(void)state;
	is_refused(&(struct tls_config){.certificate = path_of("node.pem")}, "belong together");
	write_file("node.key", "", 0644);
	is_refused(&(struct tls_config){.certificate = path_of("node.pem"),
					.private_key = path_of("node.key"),
					.ca = path_of("ca.pem")},
		   "others cannot read");
	is_refused(&(struct tls_config){.certificate = path_of("none"),
					.private_key = path_of("none"),
					.ca = path_of("none")},
		   "none");
}

static int begin(void **state)
{
	(void)state;
	return mkdtemp(folder) ? 0 : -1;
}

static int finish(void **state)
{
	static const char *const names[] = {"key", "fifo", "node.pem", "node.key", "ca.pem"};
	(void)state;
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unlink(path_of(names[i]));
	return rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(daemons_with_one_key_work),
		cmocka_unit_test(another_key_is_refused),
		cmocka_unit_test(all_keys_of_a_file_are_accepted),
		cmocka_unit_test(a_failed_reload_changes_nothing),
		cmocka_unit_test(bad_key_files_are_refused),
		cmocka_unit_test(garbage_is_refused),
		cmocka_unit_test(endless_handshakes_are_refused),
		cmocka_unit_test(a_truncated_handshake_is_not_ready),
		cmocka_unit_test(certificates_of_one_authority_work),
		cmocka_unit_test(an_impostor_is_refused),
		cmocka_unit_test(incomplete_certificates_are_refused),
	};
	return cmocka_run_group_tests(tests, begin, finish);
}
