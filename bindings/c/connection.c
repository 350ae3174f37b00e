/* Finds a store's daemon, connects to it, and exchanges a command for its reply. */
#define _GNU_SOURCE
#include "connection.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

/* The longest value of a reply, which is also the server's limit. The server reports an error for a
 * longer value. */
enum { LONGEST_VALUE = 512 << 20, LINE = 4096, MOST_ITEMS = 16 << 20, DEEPEST = 4 };
/* The server's limit on the size of a command. The server closes the connection if a command is
 * longer. */
enum { LONGEST_WORD = 4 << 20, LONGEST_COMMAND = 32 << 20, MOST_WORDS = 128 << 10, FRAMING = 32 };

int kvfs_fail(kvfs *store, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(store->error, sizeof store->error, format, arguments);
    va_end(arguments);
    return code;
}

int kvfs_lost(kvfs *store) {
    int gone = feof(store->in) || ferror(store->in) || ferror(store->out);
    return kvfs_fail(store, KVFS_LOST, "%s",
                     gone ? "the store's daemon is gone: close the connection, and open one anew"
                          : "the store's daemon gave a reply that makes no sense");
}

/* --- where the store is --- */

/* Copies a string out of the JSON of a record. The only escapes are `\"`, `\\` and `\/`; `%XX`
 * stands for a byte. */
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
        } else if (byte == '%' && isxdigit((unsigned char)at[0]) &&
                   isxdigit((unsigned char)at[1])) {
            char digits[3] = {at[0], at[1], '\0'};
            byte = (char)strtol(digits, NULL, 16);
            at += 2;
        }
        out[used++] = byte;
    }
    out[used] = '\0';
    return 0;
}

/* Reads the record of the daemon of the mount with this device: the path of its socket and its
 * mount point. */
static int record(dev_t device, char *socket_path, char *mount_point) {
    char directory[PATH_MAX], path[PATH_MAX + 64], json[4 * PATH_MAX];
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (geteuid() == 0)
        strcpy(directory, "/run/kvfs");
    else if (runtime != NULL && *runtime != '\0')
        snprintf(directory, sizeof directory, "%s/kvfs", runtime);
    else
        snprintf(directory, sizeof directory, "%s/kvfs-%u",
                 getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (unsigned)geteuid());
    snprintf(path, sizeof path, "%s/%u:%u.json", directory, major(device), minor(device));
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    size_t got = fread(json, 1, sizeof json - 1, file);
    fclose(file);
    json[got] = '\0';
    if (field(json, "socket", socket_path, PATH_MAX) != 0 ||
        field(json, "mount_point", mount_point, PATH_MAX) != 0) {
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
        /* A server of another user must not receive any keys. */
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

/* Writes to the socket. If the daemon has ended, the write returns an error instead of raising a
 * signal that would end the program. */
static ssize_t send_all(void *cookie, const char *bytes, size_t size) {
    int fd = (int)(intptr_t)cookie;
    for (size_t sent = 0; sent < size;) {
        ssize_t now = send(fd, bytes + sent, size - sent, MSG_NOSIGNAL);
        if (now < 0 && errno != EINTR)
            return 0;
        sent += now > 0 ? (size_t)now : 0;
    }
    return (ssize_t)size;
}

static int close_sending(void *cookie) { return close((int)(intptr_t)cookie); }

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
        store->out =
            fopencookie((void *)(intptr_t)out, "wb",
                        (cookie_io_functions_t){.write = send_all, .close = close_sending});
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

const char *kvfs_mount_point(const kvfs *store) {
    return store->mount_point[0] != '\0' ? store->mount_point : NULL;
}

/* --- commands --- */

/* Reads a line of a reply, without its end. */
static int line_of(kvfs *store, char *line) {
    if (fgets(line, LINE, store->in) == NULL)
        return kvfs_lost(store);
    size_t length = strlen(line);
    if (length < 3 || strcmp(line + length - 2, "\r\n") != 0)
        return kvfs_lost(store);
    line[length - 2] = '\0';
    return KVFS_OK;
}

static int read_reply(kvfs *store, int depth, struct reply *reply) {
    char line[LINE];
    memset(reply, 0, sizeof *reply);
    int code = line_of(store, line);
    if (code != KVFS_OK)
        return code;
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
        if (size > LONGEST_VALUE)
            return kvfs_lost(store);
        if ((reply->text = malloc((size_t)size + 2)) == NULL)
            return kvfs_fail(store, KVFS_LOST, "there is no memory for a value of %lld bytes",
                             size);
        if (fread(reply->text, 1, (size_t)size + 2, store->in) != (size_t)size + 2)
            return kvfs_lost(store);
        reply->text[size] = '\0';
        reply->size = (size_t)size;
        return KVFS_OK;
    }
    case '*': {
        long long count = strtoll(line + 1, NULL, 10);
        if (count < 0) {
            reply->kind = 0;
            return KVFS_OK;
        }
        if (count > MOST_ITEMS || depth == DEEPEST ||
            (reply->items = calloc((size_t)count + 1, sizeof *reply)) == NULL)
            return kvfs_lost(store);
        /* An error among the replies is the error of the command. All replies are read, because a
         * rest would be taken for the reply to the next command. */
        while (reply->count < (size_t)count) {
            int one = read_reply(store, depth + 1, &reply->items[reply->count++]);
            if (one == KVFS_LOST)
                return one;
            code = code == KVFS_OK ? one : code;
        }
        return code;
    }
    case '-': {
        static const struct {
            const char *name;
            int code;
        } codes[] = {{"CONFLICT ", KVFS_CONFLICT},
                     {"LOCKED ", KVFS_LOCKED},
                     {"NOTXN ", KVFS_ENDED},
                     {"NOSPACE ", KVFS_FULL},
                     {"NODICT ", KVFS_ERROR},
                     {"RESERVED ", KVFS_ERROR},
                     {"EXISTS ", KVFS_ERROR},
                     {"NOENT ", KVFS_ERROR},
                     {"NOTDIR ", KVFS_ERROR}};
        for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
            if (strncmp(line + 1, codes[i].name, strlen(codes[i].name)) == 0)
                return kvfs_fail(store, codes[i].code, "%s", line + 1 + strlen(codes[i].name));
        return kvfs_fail(store, KVFS_ERROR, "%s",
                         strncmp(line, "-ERR ", 5) == 0 ? line + 5 : line + 1);
    }
    default:
        return kvfs_lost(store);
    }
}

void kvfs_reply_free(struct reply *reply) {
    for (size_t i = 0; i < reply->count; i++)
        kvfs_reply_free(&reply->items[i]);
    free(reply->items);
    free(reply->text);
    memset(reply, 0, sizeof *reply);
}

int kvfs_call(kvfs *store, const struct word *words, size_t count, struct reply *reply) {
    memset(reply, 0, sizeof *reply);
    size_t all = FRAMING;
    for (size_t i = 0; i < count; i++) {
        all += words[i].size + FRAMING;
        if (words[i].size > LONGEST_WORD)
            return kvfs_fail(store, KVFS_ERROR,
                             "%zu bytes are longer than a key or value may be here, which is %d: "
                             "write it in parts, or as a file",
                             words[i].size, (int)LONGEST_WORD);
    }
    if (all > LONGEST_COMMAND || count > MOST_WORDS)
        return kvfs_fail(store, KVFS_ERROR,
                         "%zu words of %zu bytes are more than one command takes", count, all);
    fprintf(store->out, "*%zu\r\n", count);
    for (size_t i = 0; i < count; i++) {
        fprintf(store->out, "$%zu\r\n", words[i].size);
        fwrite(words[i].bytes, 1, words[i].size, store->out);
        fputs("\r\n", store->out);
    }
    if (fflush(store->out) != 0)
        return kvfs_lost(store);
    int code = read_reply(store, 0, reply);
    if (code != KVFS_OK)
        kvfs_reply_free(reply);
    return code;
}

int kvfs_say(kvfs *store, const struct word *words, size_t count) {
    struct reply reply;
    int code = kvfs_call(store, words, count, &reply);
    kvfs_reply_free(&reply);
    return code;
}
