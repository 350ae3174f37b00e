//! The options of `-o` as `kvfs mount --help` shows them.

/// The text after the arguments of the command.
pub const HELP: &str = "\
Options for -o, separated by commas:
  ro, rw                      read-only, writable (default)
  allow_other                 give other users access (the kernel checks permissions)
  open_views                  with allow_other: let all users read snapshots, clones and open
                              transactions of others, if the modes of the files there allow it
                              (default: only root, the user who mounted, and the user who began
                              the transaction)
  nodefault_permissions       only for root, which is not bound by modes: save a request for each
                              change of a name, since the kernel checks no permissions. Modes then
                              do not bind a uid 0 without CAP_DAC_OVERRIDE, either. Refused with
                              allow_other, to other users, and to a root that is bound by modes
  suid, nosuid, dev, nodev    honour set-user-ID bits and device nodes (default: neither)
  exec, noexec                allow programs to be run (default: allowed)
  sync, async, dirsync        write through immediately, or not (default)
  relatime, noatime           update access times on reads (default: relatime). A read that the
                              kernel answers from its cache does not update them, so strictatime is
                              refused
  cache=through, back, auto   where written data is when a write returns. through: in the daemon.
                              back: in the kernel, which batches writes: many small writes get
                              cheaper, changes of names more expensive, and more is lost if the
                              machine or the daemon crashes. auto (default): the faster one over
                              all measured programs, which is through. writeback and nowriteback
                              are cache=back and cache=through
  fsname=NAME, subtype=NAME   source and type in the table of mounts (default: the store, and
                              kvfs; an empty subtype leaves the type plain `fuse`)
  memory=SIZE, log=FILE, metrics=ADDRESS
                              as --memory, --log and --metrics
  cache_size=SIZE             for a store in object storage: limit the disk space of fetched data
                              (default: all available space)
  snapshot=NAME, clone=NAME   mount only this view of the files of the store (a snapshot read-only,
                              a clone with its transactions and snapshots); requires the right to
                              mount. For a store that is already mounted, use .kvfs in its root
  listen=ADDRESS, password_file=FILE
                              also serve keys at this address (127.0.0.1:6379), as on the store's
                              socket, to clients that know the password in the first line of the
                              file, which must be private to its user
  tls_cert=FILE, tls_key=FILE encrypt connections to that address: a certificate, followed by those
                              that lead to a known authority, and its key, in PEM
  max_clients=N               limit open connections to the socket and the address (default: 10000,
                              or fewer if the limit of descriptors is lower)
  serve=unix:SOCKET           serve snapshots to mounts elsewhere, as kvfs serve does; SOCKET is an
                              absolute path
  serve_write                 also let those mounts begin transactions, which change the store when
                              they commit
  transport=auto, uring, device
                              how requests come from the kernel. uring: over io_uring, which
                              requires Linux 6.14, and root or
                              /sys/module/fuse/parameters/enable_uring set to Y by root; not with
                              writeback. device: over /dev/fuse. auto (default): over io_uring if
                              that parameter is set
  zone_size=SIZE              bytes that a directory created from now on reserves for its small
                              files, so that they are stored together (default: as recorded in the
                              store, see kvfs create); 0: none
  threads=N                   threads that answer requests from /dev/fuse (default: one per core, 2
                              to 8)
  scrub=DAYS, scrub_rate=MIB  read everything again every DAYS days, at MIB per second (default: 30
                              and 16 if one of the two is given, otherwise no scrubs): see kvfs
                              scrub
  publish=ADDRESS, publish_every=SECONDS
                              publish the store to dir:FOLDER/NAME or s3://BUCKET/NAME, SECONDS
                              after a commit (default: 10) and at unmount: if the machine is lost,
                              only later commits are lost. See kvfs push
  durability=local, remote    for a store that is published, or written in object storage: what a
                              sync waits for. local (default): the disk of this machine. remote:
                              also until the commits are in object storage, so that the loss of
                              this machine loses nothing that was synced
  follow_every=SECONDS        for a store in object storage that is mounted read-only by its
                              address: check for new publications every SECONDS (default: 10), and
                              show them; 0: show the store as of the mount
  write                       for a store in object storage: mount it writable, and publish changes
                              as with publish=ADDRESS. Only one machine can write it at a time
  take                        like write, even if another machine has the store open; unpublished
                              changes of that machine stay in its local file
  offline                     for a store in object storage: send no requests. Data that was not
                              fetched cannot be read (EIO); changes are published after the next
                              mount without this option
  keeper                      restart the daemon when it is killed or crashes: programs wait for a
                              moment and notice nothing else, and completed calls lose nothing.
                              Each change takes longer, since it is committed before its call
                              returns. Requires Linux 6.9; not with transport=uring
  noxattr                     no extended attributes: one request less for every new file
  btime, nobtime              show creation times in statx(2), or not (default: not, since a program
                              that asks for them costs one request more for each file)
Words for mount(8), systemd and fstab (x-*, _netdev, nofail, noauto, user, defaults, ...) are
skipped.";
