//! What every part of an opened directory needs: its variant of the format, and its keys.

use crate::base64::Base64;
use crate::config::Features;
use crate::content::ContentCipher;
use crate::keys::{KEY_BYTES, Keys, MasterKey};
use crate::names::Names;
use std::sync::Arc;
use zeroize::Zeroizing;

pub(crate) struct Format {
    pub(crate) features: Features,
    pub(crate) names: Names,
    pub(crate) content: Arc<ContentCipher>,
    pub(crate) content_key: Zeroizing<[u8; KEY_BYTES]>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Format").field("features", &self.features).finish_non_exhaustive()
    }
}

impl Format {
    pub(crate) fn new(master: &MasterKey, features: Features) -> Self {
        let keys = Keys::new(master, features);
        Self {
            features,
            names: Names::new(&keys.names, features),
            content: Arc::new(ContentCipher::new(&keys.content)),
            content_key: keys.content,
        }
    }

    /// The target of a symbolic link, as it is stored.
    pub(crate) fn seal_target(&self, target: &[u8]) -> Vec<u8> {
        if self.features.plaintext_names || target.is_empty() {
            return target.to_vec();
        }
        self.names.base64().encode(&self.content.seal_target(target))
    }

    /// The target of a symbolic link; none if it is damaged.
    pub(crate) fn open_target(&self, stored: &[u8]) -> Option<Vec<u8>> {
        if self.features.plaintext_names || stored.is_empty() {
            return Some(stored.to_vec());
        }
        let base64: Base64 = self.names.base64();
        self.content.open_target(&base64.decode(stored)?).ok()
    }
}
