/* What the parts of libkvfs share: the connection to a store's daemon, which is talked to in RESP,
 * the protocol of Redis (docs/resp.md), over its Unix socket. Not installed. */
#ifndef KVFS_CONNECTION_H
#define KVFS_CONNECTION_H

#include "kvfs.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

struct kvfs {
    FILE *in;  /* reads from the socket */
    FILE *out; /* writes to it; a descriptor of its own */
    char mount_point[PATH_MAX];
    char error[512];
    int own_mounts;  /* the process has a mount name space of its own */
    int bound;       /* a view lies over the mount point */
    int old_root;    /* the root before a chroot, else -1 */
    kvfs_txn inside; /* 0: none */
};

/* A reply: an integer, a string, other replies, or nothing (`kind` is RESP's: + : $ *, and 0 for
 * nothing). A zero byte follows the text, uncounted. */
struct reply {
    char kind;
    long long number;
    char *text;
    size_t size;
    struct reply *items;
    size_t count;
};

/* A part of a command, of any bytes. */
struct word {
    const void *bytes;
    size_t size;
};

static inline struct word text(const char *text) { return (struct word){text, strlen(text)}; }

/* What the parts share is none of the library's own. */
#pragma GCC visibility push(hidden)

/* Notes what was wrong, and returns `code`. */
__attribute__((format(printf, 3, 4))) int kvfs_fail(kvfs *store, int code, const char *format, ...);
int kvfs_lost(kvfs *store);

/* Sends a command and reads its reply, which the caller frees. An error reply becomes a code, and
 * leaves nothing to be freed. */
int kvfs_call(kvfs *store, const struct word *words, size_t count, struct reply *reply);
void kvfs_reply_free(struct reply *reply);

/* The same for a command whose reply says no more than that it was done. */
int kvfs_say(kvfs *store, const struct word *words, size_t count);

#pragma GCC visibility pop

#endif
