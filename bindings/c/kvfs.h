/* libkvfs: transactions over the files and the keys of a mounted KVFS store.
 *
 *     kvfs *store = kvfs_open("/mnt");
 *     kvfs_txn t;
 *     do {
 *         kvfs_begin(store, KVFS_SI, 0, &t);
 *         // /mnt is now as the transaction sees it, for this process and its children
 *         kvfs_enter(store, t, 0);
 *         ... open, write, rename, remove files under /mnt ...
 *         kvfs_put(store, "state", 5, "done", 4);
 *         kvfs_leave(store);
 *     } while (kvfs_commit(store, t, KVFS_SYNC) == KVFS_CONFLICT);
 *     kvfs_close(store);
 *
 * A transaction belongs to the store, not to the process: it has a number, and a process that knows
 * it can join. It covers everything that is done in it to files and keys, commits as a whole or not
 * at all, and is not seen by others before.
 *
 * Every function returns KVFS_OK (0) or one of the codes below; kvfs_error tells in words what was
 * wrong. A `kvfs` is a connection to the store's daemon, for one thread at a time. No dependency
 * but the C library; Linux. */
#ifndef KVFS_H
#define KVFS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvfs kvfs;
typedef struct kvfs_cursor kvfs_cursor;
typedef uint64_t kvfs_txn;

enum {
    KVFS_OK = 0,
    KVFS_ABSENT = 1,    /* there is no such key */
    KVFS_ERROR = -1,    /* see kvfs_error */
    KVFS_CONFLICT = -2, /* others have changed the same: the transaction is over, nothing was
                         * changed, begin again */
    KVFS_LOCKED = -3,   /* another transaction holds it, or an older one took what this one held:
                         * abort, and begin again */
    KVFS_ENDED = -4,    /* there is no such transaction any more */
    KVFS_FULL = -5,     /* the store is full; the transaction is still open */
    KVFS_LOST = -6      /* the daemon is gone, or said something that makes no sense: close the
                         * connection */
};

enum { KVFS_SI = 0, KVFS_SER = 1 }; /* snapshot isolation; serializable */

enum {
    KVFS_NOCHECK = 1,  /* begin: the last to commit wins (KVFS_SI alone) */
    KVFS_ATTACHED = 2, /* begin: aborted when this connection ends */
    KVFS_SYNC = 4,     /* commit: on disk before it returns */
    KVFS_CHROOT = 8,   /* enter: the view becomes the root, which needs CAP_SYS_CHROOT alone */
    KVFS_UNDOABLE = 16, /* begin: its commit can be undone */
    KVFS_SHARED = 32    /* lock: others may read, but not change it */
};

/* Connects to a store: by the directory it is mounted on (or one inside), or by its daemon's
 * socket. NULL: the store that `kvfs run` has started this program for ($KVFS_SOCKET). NULL with
 * errno set when that is not possible. */
kvfs *kvfs_open(const char *where);
void kvfs_close(kvfs *store);

/* What was wrong last, in words; never NULL. Valid until the next call. */
const char *kvfs_error(const kvfs *store);

/* Where the store is mounted, or NULL where that is not known. */
const char *kvfs_mount_point(const kvfs *store);

/* Begins a transaction. `isolation`: KVFS_SI or KVFS_SER; `flags`: KVFS_NOCHECK, KVFS_ATTACHED,
 * KVFS_UNDOABLE. */
int kvfs_begin(kvfs *store, int isolation, unsigned flags, kvfs_txn *txn);

/* Makes the transaction's changes visible to all, all at once. `flags`: KVFS_SYNC. Leaves it first
 * if it was entered. */
int kvfs_commit(kvfs *store, kvfs_txn txn, unsigned flags);

/* Ends it without a trace. Leaves it first if it was entered. */
int kvfs_abort(kvfs *store, kvfs_txn txn);

/* Begins a transaction that undoes a commit when it is committed, by the number of the commit in
 * `kvfs history`; 0: the last one of those that can be undone. What others have done since stays;
 * KVFS_CONFLICT: they have changed the same, and nothing was begun. */
int kvfs_undo(kvfs *store, unsigned long long commit, kvfs_txn *txn);

/* The keys of this connection are those of the transaction from here on, until kvfs_leave. Files
 * are not concerned. */
int kvfs_join(kvfs *store, kvfs_txn txn);

/* The same, and for this process and its children the mount is as the transaction sees it: the view
 * is bound over the mount point, in a mount name space of their own (with root's rights, or through
 * a user name space where the kernel lets users make them; that asks for a process with one
 * thread). With KVFS_CHROOT the view becomes the root. The working directory is kept if it lies in
 * the mount; files that are open already stay what they are. */
int kvfs_enter(kvfs *store, kvfs_txn txn, unsigned flags);

/* Back to the store as all others see it: keys and, if they were entered, files. The transaction
 * stays open. */
int kvfs_leave(kvfs *store);

/* The directory in which the transaction's view of the files lies, for those who rather work there.
 * `path` has room for `size` bytes. */
int kvfs_view(kvfs *store, kvfs_txn txn, char *path, size_t size);

/* Marks the state of the transaction that the connection has joined or entered, under a name, and
 * goes back to it: files and keys. */
int kvfs_savepoint(kvfs *store, const char *name);
int kvfs_rollback_to(kvfs *store, const char *name);

/* Locks a key, the keys from `from` up to `to`, without `to`, or the names in the directory at a
 * path from the root of the store, for the rest of the serializable transaction that the connection
 * has joined or entered: against changes by others and, without KVFS_SHARED, against their reads in
 * such transactions. A size of 0: no bound. KVFS_LOCKED: abort, and begin again. */
int kvfs_lock_key(kvfs *store, const void *key, size_t key_size, unsigned flags);
int kvfs_lock_range(kvfs *store, const void *from, size_t from_size, const void *to, size_t to_size,
                    unsigned flags);
int kvfs_lock_dir(kvfs *store, const char *path, unsigned flags);

/* The dictionary that keys are in; "0" at first. */
int kvfs_use(kvfs *store, const char *dictionary);

/* Sets a key to a value; of any bytes. */
int kvfs_put(kvfs *store, const void *key, size_t key_size, const void *value, size_t value_size);

/* The value of a key, in memory that the caller frees; KVFS_ABSENT when there is none. A zero byte
 * follows the value, uncounted. */
int kvfs_get(kvfs *store, const void *key, size_t key_size, void **value, size_t *value_size);

/* Deletes a key; KVFS_ABSENT when there was none. */
int kvfs_delete(kvfs *store, const void *key, size_t key_size);

/* All that was acknowledged so far, files included, is on disk when this returns. */
int kvfs_sync(kvfs *store);

/* Deletes the keys from `from` up to `to`, without `to`, as one commit. A size of 0: no bound. */
int kvfs_delete_range(kvfs *store, const void *from, size_t from_size, const void *to,
                      size_t to_size);

enum {
    KVFS_REVERSE = 1, /* range: from the last key to the first */
    KVFS_KEYS = 2     /* range: without values */
};

/* A cursor over the keys from `from` up to `to`, without `to`, in order. A size of 0: no bound. It
 * reads some tuples at a time, each time what there is then: in a transaction or a snapshot all of
 * it is one state. Valid as long as the connection is. */
int kvfs_range(kvfs *store, const void *from, size_t from_size, const void *to, size_t to_size,
               unsigned flags, kvfs_cursor **cursor);

/* The next key and its value, valid until the next call with this cursor; KVFS_ABSENT behind the
 * last one. `value` may be NULL. */
int kvfs_next(kvfs_cursor *cursor, const void **key, size_t *key_size, const void **value,
              size_t *value_size);
void kvfs_cursor_close(kvfs_cursor *cursor);

/* Makes a dictionary, changes how one keeps its tuples, drops one with all its keys. `options`:
 * names and values in turn, as of `kvfs dict` ("separate-at", "4096", "merge", "add"), and NULL
 * behind the last; NULL: none. */
int kvfs_dict_create(kvfs *store, const char *name, const char *const *options);
int kvfs_dict_set(kvfs *store, const char *name, const char *const *options);
int kvfs_dict_drop(kvfs *store, const char *name);

/* Merges the runs of the dictionary that keys are in. */
int kvfs_compact(kvfs *store);

/* Snapshots of the whole store, files and keys. A rollback makes the store what it was at the
 * snapshot. */
int kvfs_snapshot_create(kvfs *store, const char *name);
int kvfs_snapshot_drop(kvfs *store, const char *name);
int kvfs_snapshot_rollback(kvfs *store, const char *name);

/* The keys of this connection are those of a snapshot, until it is called with NULL. A transaction
 * is left first. */
int kvfs_snapshot_use(kvfs *store, const char *name);

/* A key that differs, with the lengths of its values; -1: it is not there. */
typedef struct {
    char *dictionary;
    char *key;
    size_t key_size;
    long long before, after;
} kvfs_change;

/* The strings that differ from a snapshot to another, or with NULL to what there is now; freed with
 * kvfs_changes_free. */
int kvfs_changes(kvfs *store, const char *before, const char *after, kvfs_change **changes,
                 size_t *count);
void kvfs_changes_free(kvfs_change *changes, size_t count);

#ifdef __cplusplus
}
#endif
#endif
