//! Going down on request: a file system that answers nothing any more until it is mounted again,
//! with what was durable. For tests of what survives, which cut it off like that in the middle of
//! their work.

use env::sync::atomic::Ordering;

use crate::error::Result;
use crate::views::Views;

/// What is made durable before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoingDown {
    /// All that programs have written.
    Synced,
    /// What has been committed; not what waits in memory.
    Committed,
    /// Nothing: what has not been synced may be lost.
    AsItIs,
}

const WHY: &str = "the file system was shut down on request (the GOINGDOWN ioctl): unmount it and mount it again, which recovers what is on disk";

impl Views {
    /// Ends all work on the store. From now on every call that changes something fails, and
    /// adapters answer nothing ([`Views::is_down`]). On an error all goes on as before.
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
        self.shared.down.store(true, Ordering::Release);
        self.shared.db.halt(WHY);
        self.opened().iter().for_each(|(_, fs)| fs.core.lost.end());
        self.tell(|watcher| watcher.went_down());
        Ok(())
    }

    /// Whether the file system has gone down: then nothing of it is to be shown.
    pub fn is_down(&self) -> bool {
        self.shared.down.load(Ordering::Acquire)
    }
}
