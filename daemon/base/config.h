/* SPDX-License-Identifier: Apache-2.0
 * The values of the daemon's configuration. server/config_sources.c reads them, and changes some at
 * a reload. */
#ifndef BASE_CONFIG_H
#define BASE_CONFIG_H

#include <limits.h>
#include <stdint.h>
#include <sys/un.h>

#include "proto/ncclsvc_types.h"

enum config_device { CONFIG_DEVICE_AUTO, CONFIG_DEVICE_CUDA, CONFIG_DEVICE_HOST };
/* The users that may connect. OWNER: only the daemon's own user. GROUP: also members of the
 * socket's group. ANY: every user. */
enum config_access { CONFIG_ACCESS_OWNER, CONFIG_ACCESS_GROUP, CONFIG_ACCESS_ANY };

/* How the daemons of several nodes find each other. AUTO: through MPI, if MPI has started several.
 */
enum config_bootstrap { CONFIG_BOOTSTRAP_AUTO, CONFIG_BOOTSTRAP_NONE, CONFIG_BOOTSTRAP_MPI };

/* The transport for device memory. MPI: the host transport, with the data staged through pinned
 * memory. */
enum config_transport { CONFIG_TRANSPORT_AUTO, CONFIG_TRANSPORT_NCCL, CONFIG_TRANSPORT_MPI };

enum config_source { CONFIG_DEFAULT, CONFIG_FILE, CONFIG_OPTION, CONFIG_ENVIRONMENT };

#define CONFIG_KEYS_MAX 64

struct config {
	/* Empty only under socket activation, where the socket is inherited. */
	char socket[sizeof(((struct sockaddr_un *)0)->sun_path)];
	int device;	  /* enum config_device */
	int ranks;	  /* host ranks of the world communicator */
	int host_threads; /* never 0: auto is resolved */
	int spin_us;	  /* -1: auto */
	int log_level;	  /* enum log_level */
	int log_target;	  /* enum log_target */
	int sessions_max;
	int ring_max; /* a power of two */
	int comms_max;
	int tasks_max;
	uint64_t user_region_bytes; /* per user */
	int user_comms_max;	    /* per user */
	int user_nccl_comms_max;    /* in use, per user */
	int user_sessions_max;	    /* per user */
	int user_tasks_max;	    /* per user */
	int access;		    /* enum config_access */
	int comm_idle_seconds;
	int hello_seconds;
	int drain_seconds;
	int keepalive_seconds;
	int worker_seconds;
	int worker_idle;		       /* seconds; 0: workers run permanently */
	int idle_release;		       /* seconds; 0: never */
	int stuck_after;		       /* seconds; 0: waits are not watched */
	char mps[NCCLSVC_MPS_DIRECTORY_BYTES]; /* "off" or a directory; empty: choose */
	int transport;			       /* enum config_transport */
	uint64_t staging_bytes;		       /* per GPU */
	int64_t peer_bytes; /* largest operation in the members' kernels; 0: none, -1: auto */
	char dump_dir[256]; /* empty: none */
	int dump_max_files;
	int world_data; /* 0: the ranks that the other two dimensions leave */
	int world_horizontal, world_pipeline;
	int cluster_bootstrap;	    /* enum config_bootstrap */
	char cluster_interface[64]; /* name or address; empty: choose */
	int cluster_port;	    /* for links that other daemons open; 0: any */
	char cluster_key_file[256]; /* empty: none */
	char cluster_certificate[256], cluster_private_key[256], cluster_ca[256]; /* likewise */
	int cluster_seconds; /* how long nodes wait for each other at the start */

	char file[PATH_MAX];		       /* the file that was read; empty: none */
	unsigned char source[CONFIG_KEYS_MAX]; /* enum config_source, by index in the table */
	int line[CONFIG_KEYS_MAX];	       /* in file, for values from there */
};

#endif
