/* Transactions, and their views of the files. */
#define _GNU_SOURCE
#include "connection.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* Sends a command of `TXN` that concerns one transaction. */
static int of(kvfs *store, const char *what, kvfs_txn txn, const char *option) {
    char number[24];
    snprintf(number, sizeof number, "%llu", (unsigned long long)txn);
    struct word words[4] = {text("TXN"), text(what), text(number)};
    if (option != NULL)
        words[3] = text(option);
    return kvfs_say(store, words, option != NULL ? 4 : 3);
}

int kvfs_begin(kvfs *store, int isolation, unsigned flags, kvfs_txn *txn) {
    struct word words[6] = {text("TXN"), text("BEGIN"), text(isolation == KVFS_SER ? "SER" : "SI")};
    size_t count = 3;
    struct reply reply;
    if (flags & KVFS_NOCHECK)
        words[count++] = text("NOCHECK");
    if (flags & KVFS_ATTACHED)
        words[count++] = text("ATTACHED");
    if (flags & KVFS_UNDOABLE)
        words[count++] = text("UNDOABLE");
    int code = kvfs_call(store, words, count, &reply);
    if (code == KVFS_OK)
        *txn = (kvfs_txn)reply.number;
    return code;
}

int kvfs_commit(kvfs *store, kvfs_txn txn, unsigned flags) {
    int left = store->inside == txn ? kvfs_leave(store) : KVFS_OK;
    return left != KVFS_OK ? left : of(store, "COMMIT", txn, flags & KVFS_SYNC ? "SYNC" : NULL);
}

int kvfs_abort(kvfs *store, kvfs_txn txn) {
    int left = store->inside == txn ? kvfs_leave(store) : KVFS_OK;
    return left != KVFS_OK ? left : of(store, "ABORT", txn, NULL);
}

int kvfs_undo(kvfs *store, unsigned long long commit, kvfs_txn *txn) {
    char number[24];
    snprintf(number, sizeof number, "%llu", commit);
    struct word words[3] = {text("TXN"), text("UNDO"), text(number)};
    struct reply reply;
    int code = kvfs_call(store, words, commit != 0 ? 3 : 2, &reply);
    if (code != KVFS_OK)
        return code;
    struct reply *parts = reply.items;
    if (reply.kind != '*' || reply.count != 4 || parts[0].kind != ':' || parts[3].kind != '*') {
        kvfs_reply_free(&reply);
        return kvfs_lost(store);
    }
    *txn = (kvfs_txn)parts[0].number;
    if (parts[3].count > 0) {
        /* The undo cannot be committed. The error names data that others have changed. */
        struct reply *first = &parts[3].items[0];
        code = kvfs_abort(store, *txn);
        if (code == KVFS_OK)
            code = kvfs_fail(store, KVFS_CONFLICT, "others have changed %s since",
                             first->kind == '$' ? first->text : "the same");
    }
    kvfs_reply_free(&reply);
    return code;
}

int kvfs_join(kvfs *store, kvfs_txn txn) {
    int code = store->inside != 0 ? kvfs_leave(store) : KVFS_OK;
    if (code == KVFS_OK && (code = of(store, "JOIN", txn, NULL)) == KVFS_OK)
        store->inside = txn;
    return code;
}

static int in_joined(kvfs *store, const char *what, const char *name) {
    struct word words[3] = {text("TXN"), text(what), text(name)};
    return kvfs_say(store, words, 3);
}

int kvfs_savepoint(kvfs *store, const char *name) { return in_joined(store, "SAVEPOINT", name); }

int kvfs_rollback_to(kvfs *store, const char *name) { return in_joined(store, "ROLLBACK", name); }

/* --- views --- */

int kvfs_view(kvfs *store, kvfs_txn txn, char *path, size_t size) {
    if (store->mount_point[0] == '\0')
        return kvfs_fail(store, KVFS_ERROR,
                         "it is not known where the store is mounted: open it by the directory");
    int length =
        snprintf(path, size, "%s/.kvfs/txn/%llu", store->mount_point, (unsigned long long)txn);
    return length >= 0 && (size_t)length < size
               ? KVFS_OK
               : kvfs_fail(store, KVFS_ERROR, "the path of the view is too long");
}

static int write_to(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t written = write(fd, text, strlen(text));
    close(fd);
    return written < 0 ? -1 : 0;
}

/* Creates a separate mount name space, with the rights of this process, or with the rights of a
 * user name space in which the user and group ids stay the same. */
static int own_mounts(kvfs *store) {
    if (store->own_mounts)
        return KVFS_OK;
    unsigned user = geteuid(), group = getegid();
    if (unshare(CLONE_NEWNS) != 0) {
        char map[64];
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
            return kvfs_fail(store, KVFS_ERROR,
                             "cannot make a private mount name space: %s; KVFS_CHROOT needs none",
                             strerror(errno));
        snprintf(map, sizeof map, "%u %u 1\n", user, user);
        if (write_to("/proc/self/setgroups", "deny") != 0 ||
            write_to("/proc/self/uid_map", map) != 0)
            return kvfs_fail(store, KVFS_ERROR, "cannot keep the user in a new user name space: %s",
                             strerror(errno));
        snprintf(map, sizeof map, "%u %u 1\n", group, group);
        if (write_to("/proc/self/gid_map", map) != 0)
            return kvfs_fail(store, KVFS_ERROR,
                             "cannot keep the group in a new user name space: %s", strerror(errno));
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return kvfs_fail(store, KVFS_ERROR, "cannot make the mounts private: %s", strerror(errno));
    /* Not earlier: a bind in mounts that are still shared would reach the whole machine. */
    store->own_mounts = 1;
    return KVFS_OK;
}

/* Returns whether `path` is `directory` or lies in it. */
static int lies_in(const char *path, const char *directory) {
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && (path[length] == '\0' || path[length] == '/');
}

int kvfs_enter(kvfs *store, kvfs_txn txn, unsigned flags) {
    char view[PATH_MAX + 64], here[PATH_MAX] = "";
    struct stat attributes;
    int code = kvfs_view(store, txn, view, sizeof view);
    if (code != KVFS_OK || (code = kvfs_join(store, txn)) != KVFS_OK)
        return code;
    if (stat(view, &attributes) != 0) {
        code = kvfs_fail(store, KVFS_ERROR, "cannot find %s: %s", view, strerror(errno));
    } else if (flags & KVFS_CHROOT) {
        int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (root < 0 || chroot(view) != 0) {
            code = kvfs_fail(store, KVFS_ERROR, "cannot make %s the root: %s", view,
                             strerror(errno));
            /* The root is unchanged, so no descriptor of the old root is needed. */
            if (root >= 0)
                close(root);
        } else {
            store->old_root = root;
            if (chdir("/") != 0)
                code = kvfs_fail(store, KVFS_ERROR, "cannot go to the root of %s: %s", view,
                                 strerror(errno));
        }
    } else if ((code = own_mounts(store)) == KVFS_OK) {
        if (getcwd(here, sizeof here) == NULL)
            here[0] = '\0';
        if (mount(view, store->mount_point, NULL, MS_BIND | MS_REC, NULL) != 0)
            code = kvfs_fail(store, KVFS_ERROR, "cannot bind %s over %s: %s", view,
                             store->mount_point, strerror(errno));
        else
            store->bound = 1;
        /* The same path refers to the view now. */
        if (code == KVFS_OK && here[0] != '\0' && lies_in(here, store->mount_point) &&
            chdir(here) != 0)
            code = kvfs_fail(store, KVFS_ERROR, "cannot go to %s in the view: %s", here,
                             strerror(errno));
    }
    if (code != KVFS_OK) {
        char why[sizeof store->error];
        strcpy(why, store->error);
        kvfs_leave(store);
        strcpy(store->error, why);
    }
    return code;
}

int kvfs_leave(kvfs *store) {
    char here[PATH_MAX] = "";
    int code = KVFS_OK;
    if (store->bound) {
        if (getcwd(here, sizeof here) == NULL)
            here[0] = '\0';
        if (umount2(store->mount_point, MNT_DETACH) != 0)
            return kvfs_fail(store, KVFS_ERROR, "cannot take the view from %s: %s",
                             store->mount_point, strerror(errno));
        store->bound = 0;
        if (here[0] != '\0' && lies_in(here, store->mount_point) && chdir(here) != 0 &&
            chdir(store->mount_point) != 0)
            code = kvfs_fail(store, KVFS_ERROR, "cannot go back to %s: %s", here, strerror(errno));
    }
    if (store->old_root >= 0) {
        if (fchdir(store->old_root) != 0 || chroot(".") != 0)
            code = kvfs_fail(store, KVFS_ERROR, "cannot go back to the root: %s", strerror(errno));
        close(store->old_root);
        store->old_root = -1;
    }
    if (store->inside != 0) {
        struct word words[2] = {text("TXN"), text("LEAVE")};
        store->inside = 0;
        int left = kvfs_say(store, words, 2);
        return code != KVFS_OK ? code : left;
    }
    return code;
}
