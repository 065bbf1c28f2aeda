//! Headers of the protocols, and their checksums.
