/* The parts that the modules of libkvfs share: the connection to the daemon of a store. The
 * protocol is RESP, the protocol of Redis (docs/resp.md), over the daemon's Unix socket. This
 * header is not installed. */
#ifndef KVFS_CONNECTION_H
#define KVFS_CONNECTION_H

#include "kvfs.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

struct kvfs {
    FILE *in;  /* reads from the socket */
    FILE *out; /* writes to the socket; a separate descriptor */
    char mount_point[PATH_MAX];
    char error[512];
    int own_mounts;  /* the process has a separate mount name space */
    int bound;       /* a view lies over the mount point */
    int old_root;    /* the root before a chroot, else -1 */
    kvfs_txn inside; /* 0: none */
};

/* A reply: an integer, a string, other replies, or nothing. `kind` is the type byte of RESP (+ : $
 * *), and 0 for nothing. The text is followed by a zero byte, which `size` does not count. */
struct reply {
    char kind;
    long long number;
    char *text;
    size_t size;
    struct reply *items;
    size_t count;
};

/* A part of a command, which may have any bytes. */
struct word {
    const void *bytes;
    size_t size;
};

static inline struct word text(const char *text) { return (struct word){text, strlen(text)}; }

/* The following functions are shared by the modules, and are not exported by the library. */
#pragma GCC visibility push(hidden)

/* Records the error message, and returns `code`. */
__attribute__((format(printf, 3, 4))) int kvfs_fail(kvfs *store, int code, const char *format, ...);
int kvfs_lost(kvfs *store);

/* Sends a command and reads its reply, which the caller frees. An error reply becomes a code, and
 * leaves nothing to be freed. */
int kvfs_call(kvfs *store, const struct word *words, size_t count, struct reply *reply);
void kvfs_reply_free(struct reply *reply);

/* Does the same for a command whose reply only confirms that it was carried out. */
int kvfs_say(kvfs *store, const struct word *words, size_t count);

#pragma GCC visibility pop

#endif
