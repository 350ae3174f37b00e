//! Shuts a file system down on request. The file system then does not answer until it is mounted
//! again, with its durable state. Tests of durability use this to stop the file system in the
//! middle of their work.

use crate::error::Result;
use crate::views::Views;

/// The extent to which data is made durable before the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoingDown {
    /// All data that programs have written is made durable.
    Synced,
    /// Committed data is made durable, but data that waits in memory is not.
    Committed,
    /// No data is made durable, so unsynced data may be lost.
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
                    // An error is ignored if the transaction has ended in the meantime.
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
