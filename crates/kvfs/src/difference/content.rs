//! Compares the content of two inodes: bytes and extended attributes.

use std::collections::BTreeSet;

use bytes::Bytes;
use kvdb::{Cursor, Tuple};

use super::XattrChange;
use super::side::{Side, StoredNode};
use crate::error::{Error, Result};
use crate::layout::{self, Body, XattrValue};

/// Returns whether two pages are equal. Bytes missing at the end of a page are zero; a page whose
/// content is lost differs from zeros.
pub(super) fn same_but_for_zeros(a: &[u8], b: &[u8]) -> bool {
    let both = a.len().min(b.len());
    layout::is_lost_page(a.len() as u64) == layout::is_lost_page(b.len() as u64)
        && a[..both] == b[..both]
        && a[both..].iter().chain(&b[both..]).all(|byte| *byte == 0)
}

/// Returns whether both files store their data in the same form, inline or in pages. If they are
/// the same inode and do so, the content differs if and only if pages differ.
pub(super) fn lie_alike(a: &StoredNode, b: &StoredNode) -> bool {
    matches!(
        (a.attr.body, b.attr.body),
        (Body::Inline(_), Body::Inline(_)) | (Body::Paged(_), Body::Paged(_))
    )
}

/// A page of a file. A stored page is read only if necessary.
enum Page {
    Inline(Bytes),
    Stored(Tuple),
}

impl Page {
    fn content(&self) -> Result<Bytes> {
        Ok(match self {
            Page::Inline(content) => content.clone(),
            Page::Stored(tuple) => tuple.value()?,
        })
    }
}

/// The data of a file as pages, in order.
enum Pages {
    Inline(Option<Bytes>),
    Stored(Box<Cursor>),
}

impl Pages {
    fn of((side, node): (&Side, &StoredNode)) -> Result<Pages> {
        Ok(match node.attr.body {
            Body::Inline(_) => Pages::Inline(Some(node.content.clone())),
            Body::Paged(_) => {
                let (start, end) = side.pages_of(node.ino);
                Pages::Stored(Box::new(side.state.cursor(side.layout.dmap, &start, &end)?))
            }
        })
    }

    fn next(&mut self) -> Result<Option<(u64, Page)>> {
        match self {
            Pages::Inline(content) => Ok(content.take().map(|content| (0, Page::Inline(content)))),
            Pages::Stored(cursor) => match cursor.next()? {
                Some(tuple) => {
                    let (_, block) = layout::decode_page_key(&tuple.key)?;
                    Ok(Some((block, Page::Stored(tuple))))
                }
                None => Ok(None),
            },
        }
    }
}

/// Returns whether two files have the same bytes, whether these are stored inline or in pages. The
/// files are compared page by page; two pages that lie at the same place are equal, and are not
/// read.
pub(crate) fn same(a: (&Side, &StoredNode), b: (&Side, &StoredNode)) -> Result<bool> {
    if a.1.attr.size != b.1.attr.size {
        return Ok(false);
    }
    let (mut left, mut right) = (Pages::of(a)?, Pages::of(b)?);
    let (mut x, mut y) = (left.next()?, right.next()?);
    loop {
        let at = match (&x, &y) {
            (None, None) => return Ok(true),
            (Some((at, _)), None) | (None, Some((at, _))) => *at,
            (Some((i, _)), Some((j, _))) => *i.min(j),
        };
        let page = |page: &mut Option<(u64, Page)>, pages: &mut Pages| match page
            .take_if(|(block, _)| *block == at)
        {
            Some((_, content)) => {
                *page = pages.next()?;
                Ok::<_, Error>(Some(content))
            }
            // The block is a hole.
            None => Ok(None),
        };
        let (p, q) = (page(&mut x, &mut left)?, page(&mut y, &mut right)?);
        let same = match (&p, &q) {
            (Some(Page::Stored(p)), Some(Page::Stored(q))) if p.value_len() == q.value_len() => {
                p.has_value_of(q)?
            }
            _ => {
                let content = |page: &Option<Page>| match page {
                    Some(page) => page.content(),
                    None => Ok(Bytes::new()),
                };
                same_but_for_zeros(&content(&p)?, &content(&q)?)
            }
        };
        if !same {
            return Ok(false);
        }
    }
}

/// Returns the extended attributes that differ, or all of them if the other side has no inode.
pub(super) fn xattrs(
    a: (&Side, Option<&StoredNode>),
    b: (&Side, Option<&StoredNode>),
) -> Result<Vec<XattrChange>> {
    let all =
        |node: Option<&StoredNode>| node.and_then(|node| node.xattrs.clone()).unwrap_or_default();
    let (mut before, mut after) = (all(a.1), all(b.1));
    let names: BTreeSet<Box<[u8]>> = before.keys().chain(after.keys()).cloned().collect();
    let mut changes = Vec::new();
    for name in names {
        let value = |(side, node): (&Side, Option<&StoredNode>), value: Option<XattrValue>| match (
            node, value,
        ) {
            (Some(_), Some(XattrValue::Inline(value))) => Ok(Some(Bytes::from(value))),
            (Some(node), Some(XattrValue::External(_))) => {
                let stored = side.stored_xattr(node.ino, &name)?;
                let missing = || Error::Corrupt {
                    ino: node.ino,
                    what: "the value of an extended attribute is missing".into(),
                };
                stored.ok_or_else(missing).map(Some)
            }
            _ => Ok(None),
        };
        let (before, after) = (value(a, before.remove(&name))?, value(b, after.remove(&name))?);
        if before != after {
            changes.push(XattrChange { name, before, after });
        }
    }
    Ok(changes)
}

/// Returns whether two inodes have the same extended attributes.
pub(crate) fn same_xattrs(a: (&Side, &StoredNode), b: (&Side, &StoredNode)) -> Result<bool> {
    Ok(xattrs((a.0, Some(a.1)), (b.0, Some(b.1)))?.is_empty())
}
