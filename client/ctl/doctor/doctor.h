/* SPDX-License-Identifier: Apache-2.0
 * `ncclsvc-ctl doctor`: what prevents this process from using the daemon and its GPUs. Facts are
 * gathered first, then judged by functions that depend on nothing else. */
#ifndef CTL_DOCTOR_H
#define CTL_DOCTOR_H

#include <ncclsvc.h>
#include <sys/types.h>

#include "base/text.h"
#include "proto/cuda/mps.h"

#define DOCTOR_GPUS  32
#define DOCTOR_FILES 64
#define DOCTOR_TEXT  256

/* argv[1] of the process that tests the driver. */
#define DOCTOR_DRIVER_COMMAND "doctor-driver"
#define DOCTOR_DRIVER_FD      3

struct doctor_gpu {
	uint8_t uuid[16];
	char name[NCCLSVC_NAME_BYTES];
	int32_t mode;	/* CU_COMPUTEMODE_* */
	uint32_t peers; /* a bit for each GPU whose memory it can access */
	uint32_t mps;	/* an ncclsvc_mps, of that process */
	uint64_t mps_server;
};

/* The findings of that process, written again after each step so that they survive its death. */
struct doctor_driver {
	bool cuda_open, cuda_init, listed, nccl_open;
	int32_t cuda_version, nccl_version; /* 0: unknown */
	int32_t ngpus;
	struct doctor_gpu gpus[DOCTOR_GPUS];
	char cuda_text[DOCTOR_TEXT], nccl_text[DOCTOR_TEXT]; /* what went wrong */
};

enum doctor_end { DOCTOR_ENDED, DOCTOR_HUNG, DOCTOR_CRASHED, DOCTOR_NOT_RUN };

struct doctor_file {
	char path[32];
	int error; /* errno from opening it for reading and writing; 0: it can be opened */
};

struct doctor_facts {
	char socket[108];
	int socket_error; /* errno from stat */
	mode_t socket_mode;
	uid_t socket_uid;
	gid_t socket_gid;
	bool socket_writable;

	bool connected; /* connected and queried; otherwise text says why not */
	char daemon_text[DOCTOR_TEXT];
	ncclsvc_daemon_info daemon;
	ncclsvc_device_info *devices;
	size_t ndevices;
	const char *library; /* library version */
	/* Communicators with two ranks on one GPU, and the label of one of them. */
	size_t shared_gpu;
	char shared_gpu_label[NCCLSVC_NAME_BYTES];

	enum doctor_end end;
	int end_signal;
	struct doctor_driver driver;

	const char *visible;	 /* CUDA_VISIBLE_DEVICES; NULL: not set */
	const char *connections; /* CUDA_DEVICE_MAX_CONNECTIONS; NULL: not set */
	const char *peer;	 /* NCCLSVC_PEER; NULL: not set */
	bool kernels;		 /* the library has kernels */
	struct doctor_file files[DOCTOR_FILES];
	size_t nfiles;
	struct mps mps; /* the MPS that this process's environment selects, after the daemon was
			   queried */
	const char *mps_chosen; /* the user's own choice before that; NULL: none */
	uid_t uid;
	uint64_t memlock, nofile; /* UINT64_MAX: no limit */
	int shm_error;
	uint64_t shm_bytes;
};

enum doctor_level { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_WARNING, DOCTOR_PROBLEM };

struct doctor_check {
	const char *check; /* static */
	enum doctor_level level;
	char *text;
};

struct doctor_report {
	struct doctor_check *checks;
	size_t n, room;
};

/* path: the socket's path; NULL: the library's default. */
void doctor_gather(struct doctor_facts *f, const char *path, int timeout_ms);
void doctor_facts_free(struct doctor_facts *f);
/* main of the other process. If the process was started for anything else, this returns to the
 * caller. */
int doctor_driver_main(void);

/* report.c */
__attribute__((format(printf, 4, 5))) void doctor_say(struct doctor_report *r, const char *check,
						      enum doctor_level level, const char *format,
						      ...);
void doctor_free(struct doctor_report *r);
enum doctor_level doctor_worst(const struct doctor_report *r);
/* "OK", "NOTE", "WARNING", "PROBLEM" */
const char *doctor_level_name(enum doctor_level level);

void doctor_judge(const struct doctor_facts *f, struct doctor_report *r);

/* Parts of doctor_judge. */
void doctor_judge_gpus(const struct doctor_facts *f, struct doctor_report *r);
void doctor_judge_mps(const struct doctor_facts *f, struct doctor_report *r);
/* Whether GPUs matter: the daemon has some, or this process sees some. */
bool doctor_gpus_matter(const struct doctor_facts *f);
/* The GPU of this process that is the daemon's device, or -1. */
int doctor_find_gpu(const struct doctor_facts *f, const ncclsvc_device_info *d);

#endif
