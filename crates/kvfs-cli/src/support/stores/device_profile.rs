//! The kind of device that a store is made for: requested, or reported by the host for the device
//! beneath the store.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use kvdb::Profile;
use kvfs_fuse::mounts;

/// The directory in which the host describes its block devices.
const DEVICES: &str = "/sys/dev/block";

/// Values of `kvfs create --profile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Asked {
    /// Use what the host reports about the device of the store; solid state if unknown.
    Auto,
    /// Solid state: a seek costs little more than a read.
    Ssd,
    /// A hard disk: a seek costs as much as reading a megabyte.
    Hdd,
}

impl Asked {
    /// Returns the profile for a store at `path`, which exists.
    pub fn of(self, path: &Path) -> Profile {
        match self {
            Asked::Ssd => Profile::SolidState,
            Asked::Hdd => Profile::HardDisk,
            Asked::Auto => match beneath(path) {
                Some(true) => Profile::HardDisk,
                Some(false) => Profile::SolidState,
                None => Profile::Unknown,
            },
        }
    }
}

/// Returns the name of a profile for output.
pub fn name(profile: Profile) -> &'static str {
    match profile {
        Profile::Unknown => "unknown",
        Profile::SolidState => "ssd",
        Profile::HardDisk => "hdd",
    }
}

/// Returns whether the device beneath a file, or the block device itself, is rotational, or `None`
/// if the host does not say.
fn beneath(path: &Path) -> Option<bool> {
    let metadata = std::fs::metadata(path).ok()?;
    let device = |m: &Metadata| match m.file_type().is_block_device() {
        true => m.rdev(),
        false => m.dev(),
    };
    rotates(Path::new(DEVICES), device(&metadata)).or_else(|| {
        // Some file systems have device numbers of their own: their mount names the block device.
        let mount = mounts::mount_of(&path.canonicalize().ok()?).ok()??;
        let source = std::fs::metadata(mount.source).ok()?;
        let is_device = source.file_type().is_block_device();
        is_device.then(|| rotates(Path::new(DEVICES), source.rdev()))?
    })
}

/// Reads whether a block device, or the disk that it is a partition of, is rotational. The value is
/// meaningless for paravirtual disks, since their drivers report all of them as rotational.
fn rotates(devices: &Path, device: u64) -> Option<bool> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = devices.join(format!("{major}:{minor}")).canonicalize().ok()?;
    let (disk, text) =
        [Some(place.as_path()), place.parent()].into_iter().flatten().find_map(|disk| {
            Some((disk, std::fs::read_to_string(disk.join("queue/rotational")).ok()?))
        })?;
    let name = disk.file_name()?.to_str()?;
    match text.trim() {
        "0" => Some(false),
        "1" if name.starts_with("vd") || name.starts_with("xvd") => None,
        "1" => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_what_their_disks_are_and_paravirtual_disks_are_not_believed() {
        let host = tempfile::tempdir().expect("a directory");
        let devices = host.path().join("dev/block");
        std::fs::create_dir_all(&devices).expect("made");
        for (disk, says, disk_number, partition_number) in [
            ("sda", "1\n", 0, 1),
            ("sdb", "0\n", 16, 17),
            ("vda", "1\n", 32, 33),
            ("sdc", "?", 48, 49),
        ] {
            let directory = host.path().join("devices").join(disk);
            std::fs::create_dir_all(directory.join("queue")).expect("made");
            std::fs::create_dir_all(directory.join(format!("{disk}1"))).expect("made");
            std::fs::write(directory.join("queue/rotational"), says).expect("written");
            let link = |number: u32, to: &Path| {
                std::os::unix::fs::symlink(to, devices.join(format!("8:{number}"))).expect("made");
            };
            link(disk_number, &directory);
            link(partition_number, &directory.join(format!("{disk}1")));
        }
        let says = |minor| rotates(&devices, rustix::fs::makedev(8, minor));
        assert_eq!([says(0), says(1)], [Some(true); 2]);
        assert_eq!([says(16), says(17)], [Some(false); 2]);
        assert_eq!([says(32), says(33)], [None; 2], "a paravirtual disk");
        assert_eq!([says(48), says(49)], [None; 2]);
        assert_eq!(says(64), None, "there is none");
    }

    #[test]
    fn what_is_asked_for_is_taken() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(Asked::Ssd.of(directory.path()), Profile::SolidState);
        assert_eq!(Asked::Hdd.of(directory.path()), Profile::HardDisk);
        assert_eq!(Asked::Auto.of(&directory.path().join("missing")), Profile::Unknown);
    }
}
