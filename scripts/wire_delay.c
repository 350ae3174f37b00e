/* A proxy between a client and a server on Unix sockets, which delays what goes over it and counts
 * it:
 *
 *     wire_delay LISTEN UPSTREAM COUNTS kvfs|nbd
 *
 * Each piece that is read is stamped with the time at which it may go on, and waits in a queue, so
 * that a delay takes nothing from what is under way at the same time. COUNTS is a file of numbers
 * of 64 bits that is mapped: nanoseconds of delay each way, which may be changed at any time; bytes
 * to the server; bytes to the client; requests to the server; connections; how many requests these
 * were if one of NBD read or wrote 128 KiB at most; and, counted from 0, from the eighth number on
 * requests by kind, from the 40th on their bytes by kind. The kinds are those of
 * docs/wire.md, or the commands of NBD. It runs until it is killed. */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { DELAY, UP, DOWN, REQUESTS, CONNECTIONS, PIECES, KINDS = 8, BYTES_OF_KINDS = 40 };
#define NUMBERS 72
#define PIECE (256 << 10)
#define PIECE_OF_NBD (128 << 10)
#define QUEUED_MOST (64 << 20)

static volatile uint64_t *counts;
static int is_nbd;

static void die(const char *what) {
    fprintf(stderr, "wire_delay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void add(int which, uint64_t n) {
    __atomic_fetch_add(&counts[which], n, __ATOMIC_RELAXED);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* --- Requests of a stream of bytes --- */

/* `skip` bytes of the message that began last are still to come; `head` has what came of the head
 * of the next one. */
struct parser {
    uint64_t skip;
    unsigned char head[28];
    size_t have;
    int is_greeted;
};

static uint32_t little(const unsigned char *at) {
    return at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint32_t big(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
}

static void request(unsigned kind, uint64_t bytes) {
    add(REQUESTS, 1);
    add(KINDS + kind % 32, 1);
    add(BYTES_OF_KINDS + kind % 32, bytes);
}

/* Returns how many bytes of a head are needed; with all of them, what follows the head is in
 * `skip`. */
static size_t head_of(struct parser *p) {
    if (!is_nbd) {
        /* Length, checksum, number, kind. */
        if (p->have < 17) return 17;
        uint64_t all = (uint64_t)little(p->head) + 8;
        p->skip = all > 17 ? all - 17 : 0;
        request(p->head[16], all);
        add(PIECES, 1);
        return 17;
    }
    if (!p->is_greeted) {
        /* The flags of the client. */
        if (p->have == 4) p->is_greeted = 1;
        return 4;
    }
    if (p->have < 4) return 4;
    if (big(p->head) == 0x49484156) {
        /* An option: magic, number, length. */
        if (p->have == 16) p->skip = big(p->head + 12);
        return 16;
    }
    if (p->have == 28) {
        unsigned kind = p->head[6] << 8 | p->head[7];
        uint64_t length = big(p->head + 24);
        p->skip = kind == 1 ? length : 0;
        request(kind, 28 + p->skip);
        add(PIECES, kind < 2 ? (length + PIECE_OF_NBD - 1) / PIECE_OF_NBD : 1);
    }
    return 28;
}

static void parse(struct parser *p, const unsigned char *at, size_t length) {
    while (length > 0) {
        if (p->skip > 0) {
            size_t n = p->skip < length ? p->skip : length;
            p->skip -= n, at += n, length -= n;
            continue;
        }
        p->head[p->have++] = *at++, length--;
        if (p->have == head_of(p)) p->have = 0;
    }
}

/* --- One direction of a connection --- */

struct piece {
    struct piece *next;
    uint64_t due;
    size_t length;
    unsigned char bytes[];
};

struct direction {
    int from, to, is_up;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct piece *first, **last;
    size_t queued;
    int is_over;
    struct parser parser;
};

static void *take(void *argument) {
    struct direction *d = argument;
    for (;;) {
        struct piece *piece = malloc(sizeof *piece + PIECE);
        if (!piece) die("memory");
        ssize_t got = read(d->from, piece->bytes, PIECE);
        pthread_mutex_lock(&d->lock);
        if (got <= 0) {
            free(piece);
            d->is_over = 1;
            pthread_cond_broadcast(&d->changed);
            pthread_mutex_unlock(&d->lock);
            return NULL;
        }
        piece = realloc(piece, sizeof *piece + got);
        if (!piece) die("memory");
        piece->next = NULL, piece->length = got, piece->due = now() + counts[DELAY];
        add(d->is_up ? UP : DOWN, got);
        if (d->is_up) parse(&d->parser, piece->bytes, got);
        *d->last = piece, d->last = &piece->next, d->queued += got;
        pthread_cond_broadcast(&d->changed);
        while (d->queued > QUEUED_MOST) pthread_cond_wait(&d->changed, &d->lock);
        pthread_mutex_unlock(&d->lock);
    }
}

static void *hand_on(void *argument) {
    struct direction *d = argument;
    /* Sleeps end up to 50 us late otherwise. */
    prctl(PR_SET_TIMERSLACK, 1);
    int is_broken = 0;
    for (;;) {
        pthread_mutex_lock(&d->lock);
        while (!d->first && !d->is_over) pthread_cond_wait(&d->changed, &d->lock);
        struct piece *piece = d->first;
        if (!piece) {
            pthread_mutex_unlock(&d->lock);
            shutdown(d->to, SHUT_WR);
            return NULL;
        }
        d->first = piece->next;
        if (!d->first) d->last = &d->first;
        pthread_mutex_unlock(&d->lock);
        struct timespec due = {piece->due / 1000000000, piece->due % 1000000000};
        while (piece->due > now() &&
               clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR);
        for (size_t done = 0; done < piece->length && !is_broken;) {
            ssize_t n = write(d->to, piece->bytes + done, piece->length - done);
            if (n <= 0) is_broken = 1;
            else done += n;
        }
        if (is_broken) shutdown(d->from, SHUT_RD);
        pthread_mutex_lock(&d->lock);
        d->queued -= piece->length;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
        free(piece);
    }
}

static void *connection(void *argument) {
    struct direction *ways = argument;
    pthread_t threads[4];
    for (int n = 0; n < 4; n++)
        if (pthread_create(&threads[n], NULL, n % 2 ? hand_on : take, &ways[n / 2])) die("thread");
    for (int n = 0; n < 4; n++) pthread_join(threads[n], NULL);
    close(ways[0].from), close(ways[0].to);
    free(ways);
    return NULL;
}

static int socket_at(const char *path, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof address->sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die(path);
    return fd;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "wire_delay LISTEN UPSTREAM COUNTS kvfs|nbd\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    is_nbd = !strcmp(argv[4], "nbd");
    int file = open(argv[3], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, NUMBERS * 8)) die(argv[3]);
    counts = mmap(NULL, NUMBERS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counts == MAP_FAILED) die("mmap");
    struct sockaddr_un address;
    int listener = socket_at(argv[1], &address);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64))
        die(argv[1]);
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0) continue;
        int server = socket_at(argv[2], &address);
        if (connect(server, (struct sockaddr *)&address, sizeof address)) {
            close(client), close(server);
            continue;
        }
        add(CONNECTIONS, 1);
        struct direction *ways = calloc(2, sizeof *ways);
        if (!ways) die("memory");
        for (int n = 0; n < 2; n++) {
            ways[n].from = n ? server : client, ways[n].to = n ? client : server;
            ways[n].is_up = !n, ways[n].last = &ways[n].first;
            pthread_mutex_init(&ways[n].lock, NULL);
            pthread_cond_init(&ways[n].changed, NULL);
        }
        pthread_t thread;
        if (pthread_create(&thread, NULL, connection, ways)) die("thread");
        pthread_detach(thread);
    }
}
