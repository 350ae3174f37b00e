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
 * A transaction belongs to the store, not to the process: it has a number, and any process that
 * knows the number can join. A transaction covers all changes that are made in it to files and
 * keys. It commits completely or has no effect, and others do not see its changes before it
 * commits.
 *
 * Functions with a result of type int return KVFS_OK (0) or one of the codes below; kvfs_error
 * returns a message for the last error. A `kvfs` is a connection to the store's daemon, which only
 * one thread may use at a time. The library runs on Linux, and depends only on the C library. */
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
    KVFS_ABSENT = 1,    /* the key does not exist */
    KVFS_ERROR = -1,    /* see kvfs_error */
    KVFS_CONFLICT = -2, /* others have changed the same data: the transaction has ended
                         * without effect, begin again */
    KVFS_LOCKED = -3,   /* another transaction holds the lock, or an older one took a lock of
                         * this one: abort, and begin again */
    KVFS_ENDED = -4,    /* the transaction no longer exists */
    KVFS_FULL = -5,     /* the store is full; the transaction is still open */
    KVFS_LOST = -6      /* the daemon has ended, or sent an invalid reply: close the
                         * connection */
};

enum { KVFS_SI = 0, KVFS_SER = 1 }; /* snapshot isolation; serializable */

enum {
    KVFS_NOCHECK = 1,  /* begin: the last commit wins (only with KVFS_SI) */
    KVFS_ATTACHED = 2, /* begin: aborted when this connection ends */
    KVFS_SYNC = 4,     /* commit: on disk before it returns */
    KVFS_CHROOT = 8,   /* enter: the view becomes the root, which needs only CAP_SYS_CHROOT */
    KVFS_UNDOABLE = 16, /* begin: its commit can be undone */
    KVFS_SHARED = 32    /* lock: others may read, but not change it */
};

/* Connects to a store. `where` is the directory on which it is mounted, a directory inside, or the
 * socket of its daemon. NULL stands for the store for which `kvfs run` has started this program
 * ($KVFS_SOCKET). Returns NULL and sets errno if it cannot connect. */
kvfs *kvfs_open(const char *where);
void kvfs_close(kvfs *store);

/* Returns the message of the last error; never NULL. It is valid until the next call. */
const char *kvfs_error(const kvfs *store);

/* Returns the directory on which the store is mounted, or NULL if it is not known. */
const char *kvfs_mount_point(const kvfs *store);

/* Begins a transaction. `isolation`: KVFS_SI or KVFS_SER; `flags`: KVFS_NOCHECK, KVFS_ATTACHED,
 * KVFS_UNDOABLE. */
int kvfs_begin(kvfs *store, int isolation, unsigned flags, kvfs_txn *txn);

/* Makes all changes of the transaction visible to others at the same time. `flags`: KVFS_SYNC.
 * Leaves the transaction first if it was entered. */
int kvfs_commit(kvfs *store, kvfs_txn txn, unsigned flags);

/* Ends the transaction and discards its changes. Leaves the transaction first if it was entered. */
int kvfs_abort(kvfs *store, kvfs_txn txn);

/* Begins a transaction that undoes a commit when it is committed. `commit` is the number of the
 * commit in `kvfs history`; 0 stands for the last commit that can be undone. Later changes by
 * others are kept. Returns KVFS_CONFLICT, and begins nothing, if they concern the same data. */
int kvfs_undo(kvfs *store, unsigned long long commit, kvfs_txn *txn);

/* Selects the keys of the transaction for this connection, until kvfs_leave. Files are not
 * affected. */
int kvfs_join(kvfs *store, kvfs_txn txn);

/* Does the same as kvfs_join, and also shows the mount as the transaction sees it to this process
 * and its children. The view is bound over the mount point, in a separate mount name space (with
 * root's rights, or through a user name space if the kernel lets users make them; this requires a
 * process with one thread). With KVFS_CHROOT the view becomes the root. The working directory is
 * kept if it lies in the mount; files that are already open are not affected. */
int kvfs_enter(kvfs *store, kvfs_txn txn, unsigned flags);

/* Returns to the store as all others see it: its keys and, if they were entered, its files. The
 * transaction stays open. */
int kvfs_leave(kvfs *store);

/* Returns the directory that has the transaction's view of the files, for programs that work there
 * without entering it. `path` has room for `size` bytes. */
int kvfs_view(kvfs *store, kvfs_txn txn, char *path, size_t size);

/* kvfs_savepoint marks the state of the transaction that the connection has joined or entered under
 * a name. kvfs_rollback_to restores this state of files and keys. */
int kvfs_savepoint(kvfs *store, const char *name);
int kvfs_rollback_to(kvfs *store, const char *name);

/* Locks a key, the keys from `from` up to `to`, without `to`, or the names in the directory at a
 * path from the root of the store. The lock is held for the rest of the serializable transaction
 * that the connection has joined or entered. It excludes changes by others and, without
 * KVFS_SHARED, also their reads in such transactions. A size of 0 means that there is no bound.
 * After KVFS_LOCKED, abort the transaction and begin again. */
int kvfs_lock_key(kvfs *store, const void *key, size_t key_size, unsigned flags);
int kvfs_lock_range(kvfs *store, const void *from, size_t from_size, const void *to, size_t to_size,
                    unsigned flags);
int kvfs_lock_dir(kvfs *store, const char *path, unsigned flags);

/* Selects the dictionary of the keys, which is "0" at first. */
int kvfs_use(kvfs *store, const char *dictionary);

/* Sets a key to a value. Both may have any bytes. */
int kvfs_put(kvfs *store, const void *key, size_t key_size, const void *value, size_t value_size);

/* Returns the value of a key in memory that the caller frees, or KVFS_ABSENT if there is none. The
 * value is followed by a zero byte, which the size does not count. */
int kvfs_get(kvfs *store, const void *key, size_t key_size, void **value, size_t *value_size);

/* Deletes a key. Returns KVFS_ABSENT if it did not exist. */
int kvfs_delete(kvfs *store, const void *key, size_t key_size);

/* Returns when everything that was acknowledged so far is on disk, including files. */
int kvfs_sync(kvfs *store);

/* Deletes the keys from `from` up to `to`, without `to`, as one commit. A size of 0 means that
 * there is no bound. */
int kvfs_delete_range(kvfs *store, const void *from, size_t from_size, const void *to,
                      size_t to_size);

enum {
    KVFS_REVERSE = 1, /* range: from the last key to the first */
    KVFS_KEYS = 2     /* range: without values */
};

/* Opens a cursor over the keys from `from` up to `to`, without `to`, in order. A size of 0 means
 * that there is no bound. The cursor reads some tuples at a time, each time from the current state;
 * in a transaction or a snapshot all of them belong to one state. The cursor is valid while the
 * connection exists. */
int kvfs_range(kvfs *store, const void *from, size_t from_size, const void *to, size_t to_size,
               unsigned flags, kvfs_cursor **cursor);

/* Returns the next key and its value, which are valid until the next call with this cursor, or
 * KVFS_ABSENT after the last key. `value` may be NULL. */
int kvfs_next(kvfs_cursor *cursor, const void **key, size_t *key_size, const void **value,
              size_t *value_size);
void kvfs_cursor_close(kvfs_cursor *cursor);

/* These functions create a dictionary, change how one stores its tuples, and drop one with all its
 * keys. `options` are names and values in alternation, as for `kvfs dict` ("separate-at", "4096",
 * "merge", "add"), followed by NULL. If `options` is NULL, there are none. */
int kvfs_dict_create(kvfs *store, const char *name, const char *const *options);
int kvfs_dict_set(kvfs *store, const char *name, const char *const *options);
int kvfs_dict_drop(kvfs *store, const char *name);

/* Merges the runs of the dictionary that is selected for keys. */
int kvfs_compact(kvfs *store);

/* These functions create, drop and roll back to snapshots of the whole store, with its files and
 * keys. A rollback restores the state of the snapshot. */
int kvfs_snapshot_create(kvfs *store, const char *name);
int kvfs_snapshot_drop(kvfs *store, const char *name);
int kvfs_snapshot_rollback(kvfs *store, const char *name);

/* Selects the keys of a snapshot for this connection, until the function is called with NULL. The
 * connection leaves a transaction first. */
int kvfs_snapshot_use(kvfs *store, const char *name);

/* A key that differs, with the lengths of its values. A length of -1 means that the key does not
 * exist. */
typedef struct {
    char *dictionary;
    char *key;
    size_t key_size;
    long long before, after;
} kvfs_change;

/* Returns the strings that differ between a snapshot and another one or, if `after` is NULL, the
 * current state. The caller frees them with kvfs_changes_free. */
int kvfs_changes(kvfs *store, const char *before, const char *after, kvfs_change **changes,
                 size_t *count);
void kvfs_changes_free(kvfs_change *changes, size_t count);

#ifdef __cplusplus
}
#endif
#endif
