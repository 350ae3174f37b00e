/* libkvfs: see kvfs.h. The daemon is talked to in RESP, the protocol of Redis (docs/resp.md), over its Unix socket. */
#define _GNU_SOURCE
#include "kvfs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

enum { LONGEST_VALUE = 64 << 20, LINE = 4096 };

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

/* A reply: an integer, a string, or nothing (`kind` is RESP's: + - : $, and 0 for nothing). */
struct reply {
    char kind;
    long long number;
    char *text;
    size_t size;
};

static int fail(kvfs *store, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(store->error, sizeof store->error, format, arguments);
    va_end(arguments);
    return code;
}

static int lost(kvfs *store) {
    return fail(store, KVFS_LOST, "the store's daemon is gone, or gave a reply that makes no sense");
}

/* --- where the store is ------------------------------------------------------------------------------------------- */

/* A string of a record's JSON: without escapes but `\"`, `\\` and `\/`; `%XX` stands for a byte. */
static int field(const char *json, const char *name, char *out, size_t size) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "\"%s\":\"", name);
    const char *at = strstr(json, wanted);
    if (at == NULL)
        return -1;
    at += strlen(wanted);
    size_t used = 0;
    while (*at != '"') {
        char byte = *at++;
        if (byte == '\0' || used + 1 >= size)
            return -1;
        if (byte == '\\') {
            byte = *at++;
            if (byte != '"' && byte != '\\' && byte != '/')
                return -1;
        } else if (byte == '%' && isxdigit((unsigned char)at[0]) && isxdigit((unsigned char)at[1])) {
            char digits[3] = {at[0], at[1], '\0'};
            byte = (char)strtol(digits, NULL, 16);
            at += 2;
        }
        out[used++] = byte;
    }
    out[used] = '\0';
    return 0;
}

/* The record that the daemon of the mount with this device has left: its socket and mount point. */
static int record(dev_t device, char *socket_path, char *mount_point) {
    char folder[PATH_MAX], path[PATH_MAX + 64], json[4 * PATH_MAX];
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (geteuid() == 0)
        strcpy(folder, "/run/kvfs");
    else if (runtime != NULL && *runtime != '\0')
        snprintf(folder, sizeof folder, "%s/kvfs", runtime);
    else
        snprintf(folder, sizeof folder, "%s/kvfs-%u", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (unsigned)geteuid());
    snprintf(path, sizeof path, "%s/%u:%u.json", folder, major(device), minor(device));
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    size_t got = fread(json, 1, sizeof json - 1, file);
    fclose(file);
    json[got] = '\0';
    if (field(json, "socket", socket_path, PATH_MAX) != 0 || field(json, "mount_point", mount_point, PATH_MAX) != 0) {
        errno = ENOENT;
        return -1;
    }
    return 0;
}

static int connected(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        /* A server of another user is told no keys. */
        struct ucred them;
        socklen_t size = sizeof them;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &them, &size) == 0 &&
            (them.uid == geteuid() || them.uid == 0 || geteuid() == 0))
            return fd;
        errno = EPERM;
    }
    if (fd >= 0) {
        int error = errno;
        close(fd);
        errno = error;
    }
    return -1;
}

kvfs *kvfs_open(const char *where) {
    char path[PATH_MAX], mount_point[PATH_MAX] = "";
    struct stat attributes;
    const char *mount = getenv("KVFS_MOUNT");
    if (where == NULL && (where = getenv("KVFS_SOCKET")) == NULL) {
        errno = ENOENT;
        return NULL;
    }
    if (stat(where, &attributes) != 0)
        return NULL;
    if (S_ISSOCK(attributes.st_mode)) {
        snprintf(path, sizeof path, "%s", where);
        if (mount != NULL)
            snprintf(mount_point, sizeof mount_point, "%s", mount);
    } else if (record(attributes.st_dev, path, mount_point) != 0) {
        return NULL;
    }
    int in = connected(path);
    if (in < 0)
        return NULL;
    kvfs *store = calloc(1, sizeof *store);
    int out = fcntl(in, F_DUPFD_CLOEXEC, 0);
    if (store != NULL && out >= 0) {
        store->in = fdopen(in, "rb");
        store->out = fdopen(out, "wb");
    }
    if (store == NULL || store->in == NULL || store->out == NULL) {
        if (store != NULL && store->in != NULL)
            fclose(store->in);
        else
            close(in);
        if (store != NULL && store->out != NULL)
            fclose(store->out);
        else if (out >= 0)
            close(out);
        free(store);
        errno = ENOMEM;
        return NULL;
    }
    strcpy(store->mount_point, mount_point);
    store->old_root = -1;
    return store;
}

void kvfs_close(kvfs *store) {
    if (store == NULL)
        return;
    kvfs_leave(store);
    fclose(store->in);
    fclose(store->out);
    free(store);
}

const char *kvfs_error(const kvfs *store) { return store->error; }

const char *kvfs_mount_point(const kvfs *store) { return store->mount_point[0] != '\0' ? store->mount_point : NULL; }

/* --- commands ----------------------------------------------------------------------------------------------------- */

struct word {
    const void *bytes;
    size_t size;
};

static struct word text(const char *text) { return (struct word){text, strlen(text)}; }

/* Sends a command and reads its reply, whose `text` the caller frees. An error reply becomes a code. */
static int call(kvfs *store, const struct word *words, size_t count, struct reply *reply) {
    char line[LINE];
    memset(reply, 0, sizeof *reply);
    fprintf(store->out, "*%zu\r\n", count);
    for (size_t i = 0; i < count; i++) {
        fprintf(store->out, "$%zu\r\n", words[i].size);
        fwrite(words[i].bytes, 1, words[i].size, store->out);
        fputs("\r\n", store->out);
    }
    if (fflush(store->out) != 0 || fgets(line, sizeof line, store->in) == NULL)
        return lost(store);
    size_t length = strlen(line);
    if (length < 3 || strcmp(line + length - 2, "\r\n") != 0)
        return lost(store);
    line[length - 2] = '\0';
    reply->kind = line[0];
    switch (line[0]) {
    case '+':
        return KVFS_OK;
    case ':':
        reply->number = strtoll(line + 1, NULL, 10);
        return KVFS_OK;
    case '$': {
        long long size = strtoll(line + 1, NULL, 10);
        if (size < 0) {
            reply->kind = 0;
            return KVFS_OK;
        }
        if (size > LONGEST_VALUE || (reply->text = malloc((size_t)size + 2)) == NULL)
            return lost(store);
        if (fread(reply->text, 1, (size_t)size + 2, store->in) != (size_t)size + 2) {
            free(reply->text);
            reply->text = NULL;
            return lost(store);
        }
        reply->text[size] = '\0';
        reply->size = (size_t)size;
        return KVFS_OK;
    }
    case '-': {
        static const struct {
            const char *name;
            int code;
        } codes[] = {{"CONFLICT ", KVFS_CONFLICT}, {"LOCKED ", KVFS_LOCKED}, {"NOTXN ", KVFS_ENDED}, {"NOSPACE ", KVFS_FULL}};
        for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
            if (strncmp(line + 1, codes[i].name, strlen(codes[i].name)) == 0)
                return fail(store, codes[i].code, "%s", line + 1 + strlen(codes[i].name));
        return fail(store, KVFS_ERROR, "%s", strncmp(line, "-ERR ", 5) == 0 ? line + 5 : line + 1);
    }
    default:
        return lost(store);
    }
}

/* A command of `TXN` about one transaction. */
static int of(kvfs *store, const char *what, kvfs_txn txn, const char *option) {
    char number[24];
    struct reply reply;
    snprintf(number, sizeof number, "%llu", (unsigned long long)txn);
    struct word words[4] = {text("TXN"), text(what), text(number)};
    if (option != NULL)
        words[3] = text(option);
    return call(store, words, option != NULL ? 4 : 3, &reply);
}

int kvfs_begin(kvfs *store, int isolation, unsigned flags, kvfs_txn *txn) {
    struct word words[5] = {text("TXN"), text("BEGIN"), text(isolation == KVFS_SER ? "SER" : "SI")};
    size_t count = 3;
    struct reply reply;
    if (flags & KVFS_NOCHECK)
        words[count++] = text("NOCHECK");
    if (flags & KVFS_ATTACHED)
        words[count++] = text("ATTACHED");
    int code = call(store, words, count, &reply);
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

int kvfs_join(kvfs *store, kvfs_txn txn) {
    int code = store->inside != 0 ? kvfs_leave(store) : KVFS_OK;
    if (code == KVFS_OK && (code = of(store, "JOIN", txn, NULL)) == KVFS_OK)
        store->inside = txn;
    return code;
}

/* --- views -------------------------------------------------------------------------------------------------------- */

int kvfs_view(kvfs *store, kvfs_txn txn, char *path, size_t size) {
    if (store->mount_point[0] == '\0')
        return fail(store, KVFS_ERROR, "it is not known where the store is mounted: open it by the folder");
    int length = snprintf(path, size, "%s/.kvfs/txn/%llu", store->mount_point, (unsigned long long)txn);
    return length >= 0 && (size_t)length < size ? KVFS_OK : fail(store, KVFS_ERROR, "the path of the view is too long");
}

static int write_to(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t written = write(fd, text, strlen(text));
    close(fd);
    return written < 0 ? -1 : 0;
}

/* A mount name space of our own: with the rights we have, or those of a user name space in which we are who we were. */
static int own_mounts(kvfs *store) {
    if (store->own_mounts)
        return KVFS_OK;
    unsigned user = geteuid(), group = getegid();
    if (unshare(CLONE_NEWNS) != 0) {
        char map[64];
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
            return fail(store, KVFS_ERROR, "cannot make a private mount name space: %s; KVFS_CHROOT needs none", strerror(errno));
        snprintf(map, sizeof map, "%u %u 1\n", user, user);
        if (write_to("/proc/self/setgroups", "deny") != 0 || write_to("/proc/self/uid_map", map) != 0)
            return fail(store, KVFS_ERROR, "cannot keep the user in a new user name space: %s", strerror(errno));
        snprintf(map, sizeof map, "%u %u 1\n", group, group);
        if (write_to("/proc/self/gid_map", map) != 0)
            return fail(store, KVFS_ERROR, "cannot keep the group in a new user name space: %s", strerror(errno));
    }
    store->own_mounts = 1;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return fail(store, KVFS_ERROR, "cannot make the mounts private: %s", strerror(errno));
    return KVFS_OK;
}

/* Whether `path` is `folder` or lies in it. */
static int lies_in(const char *path, const char *folder) {
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '\0' || path[length] == '/');
}

int kvfs_enter(kvfs *store, kvfs_txn txn, unsigned flags) {
    char view[PATH_MAX + 64], here[PATH_MAX] = "";
    struct stat attributes;
    int code = kvfs_view(store, txn, view, sizeof view);
    if (code != KVFS_OK || (code = kvfs_join(store, txn)) != KVFS_OK)
        return code;
    if (stat(view, &attributes) != 0) {
        code = fail(store, KVFS_ERROR, "cannot find %s: %s", view, strerror(errno));
    } else if (flags & KVFS_CHROOT) {
        store->old_root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (store->old_root < 0 || chroot(view) != 0 || chdir("/") != 0)
            code = fail(store, KVFS_ERROR, "cannot make %s the root: %s", view, strerror(errno));
    } else if ((code = own_mounts(store)) == KVFS_OK) {
        if (getcwd(here, sizeof here) == NULL)
            here[0] = '\0';
        if (mount(view, store->mount_point, NULL, MS_BIND | MS_REC, NULL) != 0)
            code = fail(store, KVFS_ERROR, "cannot bind %s over %s: %s", view, store->mount_point, strerror(errno));
        else
            store->bound = 1;
        /* The same path leads to the view now. */
        if (code == KVFS_OK && here[0] != '\0' && lies_in(here, store->mount_point) && chdir(here) != 0)
            code = fail(store, KVFS_ERROR, "cannot go to %s in the view: %s", here, strerror(errno));
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
            return fail(store, KVFS_ERROR, "cannot take the view from %s: %s", store->mount_point, strerror(errno));
        store->bound = 0;
        if (here[0] != '\0' && lies_in(here, store->mount_point) && chdir(here) != 0 && chdir(store->mount_point) != 0)
            code = fail(store, KVFS_ERROR, "cannot go back to %s: %s", here, strerror(errno));
    }
    if (store->old_root >= 0) {
        if (fchdir(store->old_root) != 0 || chroot(".") != 0)
            code = fail(store, KVFS_ERROR, "cannot go back to the root: %s", strerror(errno));
        close(store->old_root);
        store->old_root = -1;
    }
    if (store->inside != 0) {
        struct reply reply;
        struct word words[2] = {text("TXN"), text("LEAVE")};
        store->inside = 0;
        int left = call(store, words, 2, &reply);
        return code != KVFS_OK ? code : left;
    }
    return code;
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

int kvfs_use(kvfs *store, const char *dictionary) {
    struct reply reply;
    struct word words[2] = {text("USE"), text(dictionary)};
    return call(store, words, 2, &reply);
}

int kvfs_put(kvfs *store, const void *key, size_t key_size, const void *value, size_t value_size) {
    struct reply reply;
    struct word words[3] = {text("SET"), {key, key_size}, {value, value_size}};
    return call(store, words, 3, &reply);
}

int kvfs_get(kvfs *store, const void *key, size_t key_size, void **value, size_t *value_size) {
    struct reply reply;
    struct word words[2] = {text("GET"), {key, key_size}};
    int code = call(store, words, 2, &reply);
    if (code != KVFS_OK)
        return code;
    if (reply.kind == 0)
        return KVFS_ABSENT;
    if (reply.kind != '$')
        return lost(store);
    *value = reply.text;
    *value_size = reply.size;
    return KVFS_OK;
}

int kvfs_delete(kvfs *store, const void *key, size_t key_size) {
    struct reply reply;
    struct word words[2] = {text("DEL"), {key, key_size}};
    int code = call(store, words, 2, &reply);
    return code != KVFS_OK ? code : reply.number > 0 ? KVFS_OK : KVFS_ABSENT;
}
