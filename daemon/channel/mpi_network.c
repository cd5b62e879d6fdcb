/* SPDX-License-Identifier: Apache-2.0 */
#include "mpi_network.h"

#include <dirent.h>
#include <fcntl.h>
#include <mpi.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* Open MPI's component for shared memory has another name since version 5. */
static const char *shared_memory_only(void)
{
	char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
	int length = 0;
	MPI_Get_library_version(library, &length);
	const char *version = strstr(library, "Open MPI v");
	return version && atoi(version + strlen("Open MPI v")) < 5 ? "self,vader" : "self,sm";
}

bool mpi_network_choose(const struct mpi_network *network)
{
	if (network->one_machine) {
		setenv("OMPI_MCA_pml", "ob1", 0);
		setenv("OMPI_MCA_btl", shared_memory_only(), 0);
	}
	/* Open MPI takes one of the two variables only. */
	if (!network->interface || getenv("OMPI_MCA_btl_tcp_if_include") ||
	    getenv("OMPI_MCA_btl_tcp_if_exclude"))
		return false;
	setenv("OMPI_MCA_btl_tcp_if_include", network->interface, 1);
	/* With one interface there is one connection for each pair of nodes: MPI_Init makes it. */
	setenv("OMPI_MCA_mpi_preconnect_mpi", "1", 1);
	return true;
}

/* Open MPI's TCP component listens on all addresses, whatever interface it has been given. What
 * listens on one address is another's (libfabric's, UCX's), which may still need it. */
static bool listens_on_all_addresses(int fd)
{
	struct sockaddr_storage at;
	socklen_t size = sizeof(at), length = sizeof(int);
	int listens = 0;
	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) || !listens ||
	    getsockname(fd, (struct sockaddr *)&at, &size))
		return false;
	if (at.ss_family == AF_INET)
		return ((struct sockaddr_in *)&at)->sin_addr.s_addr == htonl(INADDR_ANY);
	return at.ss_family == AF_INET6 &&
	       IN6_IS_ADDR_UNSPECIFIED(&((struct sockaddr_in6 *)&at)->sin6_addr);
}

/* Open MPI polls the descriptor on, and closes it at the end: a file that never becomes readable
 * takes its place. */
void mpi_network_close_ports(void)
{
	int silent = eventfd(0, EFD_CLOEXEC);
	DIR *dir = opendir("/proc/self/fd");
	const struct dirent *entry;
	while (silent >= 0 && dir && (entry = readdir(dir))) {
		int fd = atoi(entry->d_name);
		if (entry->d_name[0] != '.' && listens_on_all_addresses(fd))
			dup3(silent, fd, O_CLOEXEC);
	}
	if (dir)
		closedir(dir);
	if (silent >= 0)
		close(silent);
}
