//! The two layers of a kernel overlay, and what the upper one changes. Nothing here knows of
//! stores.
//!
//! The overlay must be mounted with [`OPTIONS`]: then the upper layer describes itself, without
//! redirections of names and without files that lack their content, and a rename of a directory of
//! the lower layer fails with EXDEV, so that programs copy it.

pub mod layer;
pub mod reader;

/// Options that the overlay must be mounted with for [`reader::Changes`] to understand it.
/// `userxattr` is needed, too, with [`layer::Marks::User`]; the kernel refuses that with
/// `redirect_dir=off`, and `nofollow` makes no redirections either.
pub const OPTIONS: &str = "redirect_dir=nofollow,index=off,metacopy=off,xino=off";
