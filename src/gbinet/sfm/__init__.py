"""Structure from motion: bare photos -> posed scene."""

from gbinet.sfm.pose import PosedPhotos as PosedPhotos
from gbinet.sfm.pose import pose_photos as pose_photos
