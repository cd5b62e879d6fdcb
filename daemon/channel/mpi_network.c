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

/* Open MPI renamed its shared-memory component in version 5. */
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
	/* Open MPI accepts only one of the two variables. */
	if (!network->interface || getenv("OMPI_MCA_btl_tcp_if_include") ||
	    getenv("OMPI_MCA_btl_tcp_if_exclude"))
		return false;
	setenv("OMPI_MCA_btl_tcp_if_include", network->interface, 1);
	/* With one interface, each pair of nodes has a single connection, which MPI_Init makes. */
	setenv("OMPI_MCA_mpi_preconnect_mpi", "1", 1);
	return true;
}

/* Open MPI's TCP component listens on all addresses, whatever its interface. A socket that listens
 * on one address belongs to another component (libfabric, UCX), which may still need it. */
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

/* Open MPI keeps polling the descriptor and closes it at the end, so a file that never becomes
 * readable replaces it. */
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
