//! Clients are told when a version that they have acquired is old: what they show of it can go once they have released it.

use super::holding::Thing;
use super::{Server, say, session};
use crate::protocol::ToClient;
use bifolio_cache::{Client, LeaseNumber, Reader};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

/// Of so many acquired ranges it is remembered that their clients were told. Those that are told twice do nothing twice.
const TOLD_MAX: usize = 10_000;

impl Server {
    /// Tells clients as long as the server is there.
    pub(super) fn tell_of_versions(self: &Arc<Self>) {
        let (news, server) = (self.holding.news(), Arc::downgrade(self));
        let tell = move || {
            let mut told = BTreeSet::<(Client, LeaseNumber)>::new();
            for (device, reader) in news {
                let Some(server) = server.upgrade() else { return };
                if told.len() >= TOLD_MAX {
                    told.clear();
                }
                if told.insert((reader.client, reader.lease)) {
                    server.tell_of_version(device, &reader);
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("news".into()).spawn(tell) {
            say(&format!("no thread that tells of versions: {error}"));
        }
    }

    fn tell_of_version(&self, device: usize, reader: &Reader) {
        for thing in self.holding.things() {
            let Thing::Handle(client, file) = thing else { continue };
            let Some((_, [dev, inode, mark])) = self.holding.get(thing) else { continue };
            if session::of_mark(mark).0 != reader.client {
                continue;
            }
            let Some(cached) = self.files().get(&(dev, inode)).map(|resident| resident.file.clone()) else { return };
            let leases = cached.for_client(reader.client).leases();
            if let Some((_, _, range, _)) = leases.into_iter().find(|(number, ..)| *number == reader.lease) {
                self.tell(client, &ToClient::NewVersion { file, device, range });
            }
            return;
        }
    }
}
