/* libkvfs_served: transactions and snapshots of a KVFS store that a server has (`kvfs serve`), on
 * this machine or another one. Only what is read and written goes over the wire.
 *
 *     char why[256];
 *     kvfs_served *store =
 *         kvfs_served_open("kvfs://files.example.org:7411", NULL, why, sizeof why);
 *     kvfs_txn t;
 *     do {
 *         kvfs_served_begin(store, NULL, &t);
 *         kvfs_served_write_file(store, "/project/state", "done", 4);
 *         kvfs_served_put(store, "state", 5, "done", 4);
 *     } while (kvfs_served_commit(store, t, KVFS_SYNC) == KVFS_CONFLICT);
 *     kvfs_served_close(store);
 *
 * kvfs.h is for a store that is mounted on this machine, and works on its files by the calls of the
 * system. Here there is no mount, and no need of FUSE or of root: the file system runs in this
 * process, and its files are read and written by these functions. A transaction belongs to the
 * connection: it ends with it, and files and keys of the connection are those of the transaction.
 *
 * Every function returns KVFS_OK (0) or one of the codes of kvfs.h; kvfs_served_error tells in
 * words what was wrong. KVFS_ABSENT is that of a file, a directory and a snapshot, too. KVFS_LOST
 * says that the server is not to be reached for as long as is waited for it; the same call may be
 * made again. A connection is for one thread at a time, and for the process that has opened it:
 * not for a child that is forked off. A thread that uses one which another thread uses waits for
 * it, and a connection or a cursor that is closed is an error, KVFS_ERROR. The library has threads
 * of its own. Linux. */
#ifndef KVFS_SERVED_H
#define KVFS_SERVED_H

#include <kvfs.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvfs_served kvfs_served;
typedef struct kvfs_served_cursor kvfs_served_cursor;

/* How to connect; what is NULL or 0 has its default. */
typedef struct {
    /* For a server on another machine: a token, or the file whose first line is one; over a network
     * the certificates that are trusted (else those that the machine trusts); a certificate of this
     * client and its key (PEM). Those that are not given are taken from the environment, as by
     * `kvfs mount`: KVFS_TOKEN_FILE, KVFS_TOKEN, KVFS_CA, KVFS_CERT, KVFS_CERT_KEY. */
    const char *token;
    const char *token_file;
    const char *ca;
    const char *cert;
    const char *cert_key;
    const char *label; /* of the transactions, for people who look at a list of them */
    double timeout;    /* seconds for which a server that is gone is waited for; 0: for ever */
    uint64_t memory;   /* bytes for caches and buffers; 0: 320 MiB */
} kvfs_served_options;

/* Connects to a server: kvfs+unix:SOCKET on this machine, kvfs+vsock://CID:PORT on the host of this
 * virtual machine, kvfs://HOST:PORT on the network. NULL when that is not possible; then `why`,
 * which has room for `size` bytes, says why. */
kvfs_served *kvfs_served_open(const char *address, const kvfs_served_options *options, char *why,
                              size_t size);

/* Ends the connection, and a transaction that is open without a trace. Cursors that are not closed
 * keep their memory until they are. */
void kvfs_served_close(kvfs_served *store);

/* What was wrong last, in words; never NULL. Valid until this thread asks again. */
const char *kvfs_served_error(const kvfs_served *store);

/* The errno of what was wrong last, as ENOTDIR; 0 where there is none. */
int kvfs_served_errno(const kvfs_served *store);

/* Begins a transaction, with snapshot isolation, of the main files and keys or of a clone (NULL:
 * the main ones). One is open on a connection at a time. A snapshot is left. */
int kvfs_served_begin(kvfs_served *store, const char *clone, kvfs_txn *txn);

/* Makes the transaction's changes visible to all, all at once. `flags`: KVFS_SYNC. After
 * KVFS_CONFLICT the transaction is over; after KVFS_LOST it is not known whether it has committed,
 * and the same call finds out. */
int kvfs_served_commit(kvfs_served *store, kvfs_txn txn, unsigned flags);

/* Ends it without a trace. */
int kvfs_served_abort(kvfs_served *store, kvfs_txn txn);

/* The files and keys of this connection are those of a snapshot, until it is called with NULL, or a
 * transaction is begun. */
int kvfs_served_snapshot_use(kvfs_served *store, const char *name);

/* The dictionary that keys are in; "0" at first. None is made over a wire. */
int kvfs_served_use(kvfs_served *store, const char *dictionary);

/* Keys, as of kvfs.h. What kvfs_served_get returns is freed by the caller, by free. */
int kvfs_served_put(kvfs_served *store, const void *key, size_t key_size, const void *value,
                    size_t value_size);
int kvfs_served_get(kvfs_served *store, const void *key, size_t key_size, void **value,
                    size_t *value_size);
int kvfs_served_delete(kvfs_served *store, const void *key, size_t key_size);
int kvfs_served_delete_range(kvfs_served *store, const void *from, size_t from_size,
                             const void *to, size_t to_size);

/* A cursor over the keys from `from` up to `to`, without `to`, in order. A size of 0: no bound.
 * `flags`: KVFS_REVERSE, KVFS_KEYS. It sees what the transaction changes before it comes there.
 * Valid as long as the connection is. */
int kvfs_served_range(kvfs_served *store, const void *from, size_t from_size, const void *to,
                      size_t to_size, unsigned flags, kvfs_served_cursor **cursor);

/* The next key and its value, valid until the next call with this cursor; KVFS_ABSENT after the
 * last one. `value` may be NULL. */
int kvfs_served_next(kvfs_served_cursor *cursor, const void **key, size_t *key_size,
                     const void **value, size_t *value_size);
void kvfs_served_cursor_close(kvfs_served_cursor *cursor);

/* --- files, by paths from the root; symbolic links in them are followed --- */

/* Up to `size` bytes of a file; fewer only at its end. `bytes` has room for `size`. */
int kvfs_served_read(kvfs_served *store, const char *path, uint64_t offset, void *bytes,
                     size_t size, size_t *got);

/* A whole file, in memory that the caller frees, by free. A zero byte follows, uncounted. */
int kvfs_served_read_file(kvfs_served *store, const char *path, void **bytes, size_t *size);

/* Writes all bytes into a file, which is made if there is none (with the permissions 0644, of this
 * process's user and group). The file grows as needed, and keeps the rest. */
int kvfs_served_write(kvfs_served *store, const char *path, uint64_t offset, const void *bytes,
                      size_t size);

/* The same, and the file has no other bytes. */
int kvfs_served_write_file(kvfs_served *store, const char *path, const void *bytes, size_t size);

/* Sets the size of a file. */
int kvfs_served_truncate(kvfs_served *store, const char *path, uint64_t size);

/* Attributes. Times are nanoseconds since 1970. */
typedef struct {
    uint64_t ino;
    uint64_t size;
    uint64_t blocks; /* of 512 bytes that are stored */
    uint32_t mode;   /* as st_mode: permissions, and the type (S_ISDIR) */
    uint32_t nlink, uid, gid;
    int64_t atime, mtime, ctime, btime;
} kvfs_attributes;

enum { KVFS_NOFOLLOW = 1 }; /* stat: of a symbolic link itself */

int kvfs_served_stat(kvfs_served *store, const char *path, unsigned flags,
                     kvfs_attributes *attributes);

/* A name of a directory. */
typedef struct {
    char *name;
    kvfs_attributes attributes;
} kvfs_entry;

/* The names of a directory in order, without "." and ".."; freed with kvfs_served_entries_free. */
int kvfs_served_list(kvfs_served *store, const char *path, kvfs_entry **entries, size_t *count);
void kvfs_served_entries_free(kvfs_entry *entries, size_t count);

int kvfs_served_mkdir(kvfs_served *store, const char *path, unsigned mode);

/* Removes a file, a symbolic link, or an empty directory. */
int kvfs_served_remove(kvfs_served *store, const char *path);

/* Renames, and replaces a file or an empty directory of the new name. */
int kvfs_served_rename(kvfs_served *store, const char *from, const char *to);

#ifdef __cplusplus
}
#endif
#endif
