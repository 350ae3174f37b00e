//! Shuts a file system down on request: it does not answer until it is mounted again, with its
//! durable state. Tests of durability use this to cut the file system off in the middle of their
//! work.

use crate::error::Result;
use crate::views::Views;

/// The extent to which data is made durable before the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoingDown {
    /// All data that programs have written.
    Synced,
    /// Committed data, but not data that waits in memory.
    Committed,
    /// Nothing: unsynced data may be lost.
    AsItIs,
}

const WHY: &str = "the file system was shut down on request (the GOINGDOWN ioctl): unmount it and mount it again, which recovers what is on disk";

impl Views {
    /// Ends all work on the store. From now on every call that changes something fails, and
    /// adapters do not answer ([`Views::is_down`]). On an error the file system continues as
    /// before.
    pub fn go_down(&self, how: GoingDown) -> Result<()> {
        match how {
            _ if self.shared.mainline.core.options.read_only => {}
            GoingDown::Synced => {
                for info in self.list() {
                    // A transaction that has ended in the meantime needs no sync.
                    if let Err(e) = self.keep(info.id)
                        && self.transaction(info.id).is_ok()
                    {
                        return Err(e);
                    }
                }
                self.sync_all()?;
            }
            GoingDown::Committed => self.shared.db.sync()?,
            GoingDown::AsItIs => {}
        }
        self.shared.background.go_down();
        self.shared.db.halt(WHY);
        self.opened().iter().for_each(|(_, fs)| fs.core.lost.end());
        self.shared.watchers.tell(|watcher| watcher.went_down());
        Ok(())
    }
}
